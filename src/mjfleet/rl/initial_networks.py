"""Begins with networks of another run, see `--init-from`. Runs in a worker."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjfleet.config.validation import SHOWN
from mjfleet.errors import UserError
from mjfleet.rl.checkpoint_values import OWN
from mjfleet.rl.runner import Runner
from mjfleet.runs.network_fit import Networks, describe_networks, misfit, told_networks

NAMED = 3  # How many tensors of another shape a line names.


def networks_of(runner: Runner) -> Networks:
    """Return what a checkpoint of this run tells of its networks."""
    observed = runner.env.get_observations().items()
    sizes = {group: tuple(rows.shape[1:]) for group, rows in observed}
    return describe_networks(runner.agent, sizes, runner.env.num_actions)


def take_networks(runner: Runner, path: Path, state: dict[str, Any], name: str) -> list[str]:
    """Load each network of a checkpoint that fits as a whole; return what became of each, in words.

    All ranks call this, with the same `state`: what `read_checkpoint` has returned for the file.
    Messages call the file `name`.

    Raises:
        UserError: the policy does not fit, or its weights are not tied where they have to be.
    """
    built, told, ours = runner.alg.save(), told_networks(path), networks_of(runner)
    own, taken, said = state.get(OWN) or {}, {}, []
    if (told and "critic" not in told) or own.get("teacher"):
        state = {key: value for key, value in state.items() if key != "critic_state_dict"}
    for part in ("actor", "critic", "rnd"):
        key = f"{part}_state_dict"
        if key not in built or (part == "critic" and part not in ours):
            continue
        why = misfit(part, told.get(part, {}), ours.get(part, {})) or _other_shapes(
            state.get(key), built[key]
        )
        if why and part == "actor":
            raise UserError(f"--init-from {name}: its actor does not fit: {why}.")
        taken[part] = not why
        kept = ", with its normaliser" * any("normalizer" in x for x in built[key])
        said.append(f"{part}: begins anew, since {why}" if why else f"{part}: taken{kept}")
    runner.alg.load(state, {**taken, "optimizer": False, "rnd": False}, strict=True)
    runner.alg.check_weights()
    if taken.get("rnd"):  # rsl_rl would load its optimiser too.
        rnd: Any = runner.alg.rnd
        rnd.load_state_dict(state["rnd_state_dict"])
    return [*said, "optimiser, learning rate, counters and worlds: begin anew"]


def _other_shapes(theirs: Mapping[str, Any] | None, ours: Mapping[str, Any]) -> str:
    """Return in words where the tensors of two networks differ; empty if they do not."""
    if theirs is None:
        return "that run has none"
    then, now = ({key: list(x.shape) for key, x in state.items()} for state in (theirs, ours))
    different = [key for key in then | now if then.get(key) != now.get(key)]
    words = [f"{key[:SHOWN]} is {then.get(key)} there, {now.get(key)} here" for key in different]
    return "; ".join(words[:NAMED] + [f"{len(words) - NAMED} more differ"] * (len(words) > NAMED))
