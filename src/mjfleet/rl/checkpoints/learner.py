"""The part of a checkpoint that is a learner's, and how another run takes it. Runs in a worker."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mjfleet.errors import UserError
from mjfleet.rl.checkpoints.files import OWN, check_networks, check_optimizer, misfit_of
from mjfleet.rl.learner import Learner, key_of

NAMES_OF_RSL_RL = "optimizer", "rnd_optimizer"
"""Names of optimisers in checkpoints of rsl_rl and of earlier versions."""


class LearnerCheckpoint:
    """Saves a learner, and restores it."""

    def __init__(self, learner: Learner, teacher: str | None) -> None:
        """Take a learner as it was built. `teacher`: the checkpoint that it imitates, or None.

        A teacher is the network `critic`.
        """
        self._learner, self._teacher = learner, teacher
        optimizers = learner.optimizers().items()
        self._rates = {n: [float(g["lr"]) for g in x.param_groups] for n, x in optimizers}
        """Configured learning rates of each optimiser's groups of parameters."""

    def saved(self) -> dict[str, Any]:
        """Return what checkpoints hold besides networks, optimisers and the state of each rank."""
        return {
            "optimizers": self._kinds(),
            "teacher": self._teacher,
            "rates": self._rates,
            "schedule": self._learner.schedule,
            "learner": self._learner.states("run"),
        }

    def check(self, path: Path, state: dict[str, Any]) -> None:
        """Raise UserError if the learner cannot take the networks of a checkpoint."""
        networks, ours = self._learner.networks(), self._networks(state)
        theirs = {*_networks_in(state)} - {"rnd"}
        if theirs == {"actor"} != {*ours}:
            raise UserError(
                f"checkpoint {path} is a policy alone, which `play` shows and `train --init-from` "
                "begins with."
            )
        if other := theirs.symmetric_difference(networks.keys() - {"rnd"}):
            actors = state[key_of("actor")], networks["actor"].state_dict()
            advice = "" if misfit_of(*actors) else " by --init-from"
            raise UserError(
                f"checkpoint {path} is of an algorithm with other networks "
                f"({', '.join(sorted(other))}): begin a new run{advice}."
            )
        check_networks(path, state, networks, ours)
        for name in self._optimizers(state):
            check_optimizer(state[key_of(name)], self._learner.optimizers()[name])

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Restore networks, optimisers and learning rates; return what could not be restored."""
        own, learner = state.get(OWN) or {}, self._learner
        networks, optimizers = self._networks(state), self._optimizers(state)
        lost = [f"the state of the optimiser ({kind})" for name, kind in self._kinds(own).items()
                if name not in optimizers]  # fmt: skip
        if "critic" in learner.networks() and "critic" not in networks:
            lost.insert(0, "the value network or teacher, which is another one now")
        built = [
            {k: g[k] for k in g if k not in ("params", "lr")} for g in self._groups(optimizers)
        ]
        learner.restore(state, {*networks, *optimizers})
        if not own:  # Betas, say, are of whoever wrote the file.
            for group, settings in zip(self._groups(optimizers), built, strict=True):
                group.update(settings)
        learner.load_states(own.get("learner", {}), "run")
        # Earlier versions wrote down one rate, and at first no schedule.
        then = own.get("rates") or {"optimizer": [own.get("configured_learning_rate")]}
        goes_on = learner.schedule in ("adaptive", own.get("schedule"))
        for name, rates in self._rates.items():
            if not (goes_on and _are_equal(then.get(name, ()), rates)):
                learner.set_learning_rate(rates[0] * learner.rate_share, name)
        return lost

    def _groups(self, names: list[str]) -> list[dict[str, Any]]:
        return [group for n in names for group in self._learner.optimizers()[n].param_groups]

    def _networks(self, state: dict[str, Any]) -> list[str]:
        """Return the names of the networks to load: all but a teacher that is another one now."""
        same = (state.get(OWN) or {"teacher": self._teacher}).get("teacher") == self._teacher
        names = [*self._learner.networks()]
        return [n for n in names if (same or n != "critic") and (n != "rnd" or key_of(n) in state)]

    def _optimizers(self, state: dict[str, Any]) -> list[str]:
        """Return the names of the optimisers whose state is that of the same kind and networks."""
        then, now = self._kinds(state.get(OWN)), self._kinds()
        names = [n for n in now if then.get(n) == now[n] and key_of(n) in state]
        is_all = self._learner.networks().keys() <= {*self._networks(state), "rnd"}
        return names if is_all else []

    def _kinds(self, own: dict[str, Any] | None = None) -> dict[str, str]:
        """Return the kind of each optimiser, of a checkpoint or, without one, of this run."""
        now = {n: type(x).__name__.lower() for n, x in self._learner.optimizers().items()}
        if not own:
            return now
        return own["optimizers"] if "optimizers" in own else now | {"optimizer": own["optimizer"]}


def _are_equal(then: Sequence[float | None], now: Sequence[float]) -> bool:
    """Return whether learning rates are equal, except for rounding: a GPU has them in float32."""
    pairs = zip(then, now, strict=False)
    is_near = (x is not None and math.isclose(x, y, rel_tol=1e-6) for x, y in pairs)
    return len(then) == len(now) and all(is_near)


def _networks_in(state: dict[str, Any]) -> list[str]:
    """Return the names of the networks in a checkpoint."""
    optimizers = {*NAMES_OF_RSL_RL, *((state.get(OWN) or {}).get("optimizers") or {})}
    keys = [key for key, part in state.items() if key.endswith("_state_dict") and part]
    return [n for key in keys if (n := key.removesuffix("_state_dict")) not in optimizers]
