"""Saves the complete state of a run, and resumes a run from it. Runs in a worker."""

import logging
from pathlib import Path
from typing import Any

from mjfleet.config import by_dotted_name, to_dict
from mjfleet.config.train_config import decides_learning
from mjfleet.env import random_numbers
from mjfleet.env.return_checks import observation_sizes
from mjfleet.errors import UserError
from mjfleet.rl.checkpoints import files
from mjfleet.rl.checkpoints.files import OWN, check_fields
from mjfleet.rl.checkpoints.initial_networks import describe_networks
from mjfleet.rl.checkpoints.learner import LearnerCheckpoint
from mjfleet.rl.checkpoints.rank_files import read_rank_file, write_rank_file
from mjfleet.rl.divergence import check_networks
from mjfleet.rl.learner_state import on_cpu
from mjfleet.rl.runner import Runner
from mjfleet.rl.worker_phases import Phase
from mjfleet.runs.checkpoints import BEST
from mjfleet.utils.console import in_a_line

logger = logging.getLogger(__name__)


class Checkpointer:
    """Writes and reads the checkpoints of a run. Each rank has one; rank 0's writes."""

    def __init__(
        self,
        runner: Runner,
        task: str,
        folder: Path | None,
        keep: int | None,
        worlds: bool = True,
        task_hash: str = "",
        attempt: str = "",
    ) -> None:
        """Write into `folder`; None: `packed` alone is called.

        If rank 0's `folder` holds a BEST, its return is the best so far. `keep`: how many others
        are kept (None: all). `worlds`: whether they hold environments and random states of all
        ranks.
        `task_hash`: of the task's code, see task_snapshot.py. `attempt`: the random name of the
        attempt, see attempts.py.
        """
        self._runner, self._task, self._task_hash = runner, task, task_hash
        self._attempt, self._keeps_worlds = attempt, worlds
        teacher = runner.agent.teacher
        self._learner = LearnerCheckpoint(runner.alg, teacher.checkpoint if teacher else None)
        self._folder = folder
        if folder is None:
            return
        self._schedule = files.CheckpointSchedule(folder, runner.agent.save_interval, keep)
        if runner.collectives.rank == 0 and (best := folder / BEST).exists():
            try:
                runner.best.take(best, files.read_checkpoint(best).get(OWN) or {})
            except UserError as error:
                logger.warning("%s The next evaluation replaces it.", error)

    def save(self, is_last: bool) -> list[Path]:
        """Write the checkpoints that are due. All ranks call this at the same time.

        One is due every `agent.save_interval` iterations and at the end, when `is_last`. BEST is
        due after an evaluation with the greatest return so far.

        Returns:
            The files that this rank has written.

        Raises:
            CheckpointError: writing has failed several times in a row.
            DivergedError: the networks are not finite.
        """
        runner, rank = self._runner, self._runner.collectives.rank
        iteration = runner.current_learning_iteration
        paths = self._schedule.due(iteration, is_last=is_last, is_best=runner.best.is_current)
        if not paths:
            return []
        check_networks(runner.alg, iteration)
        with runner.heartbeat.excused(Phase.SAVE):
            ranks: list[dict[str, Any]] = []
            if self._keeps_worlds:
                own = self._rank_state(self._write_rank_file(paths))
                gathered = runner.collectives.gather_bytes(files.pack(own)) or []
                while gathered:  # What is unpacked is not held twice.
                    ranks.append(files.unpack(gathered.pop(0)))
            elif rank == 0:
                env = runner.env.state_dict()
                ranks = [{"env": env | {"states": env["states"] | {"rows": {}, "sizes": {}}}}]
            if rank != 0:
                return []
            data = self.packed(ranks)
            is_written = self._schedule.write(paths, data, is_last=is_last)
            if runner.best.is_current and not is_written:
                runner.best.forget()
            return paths if is_written else []

    def packed(self, ranks: list[dict[str, Any]] | None = None) -> bytes:
        """Return a checkpoint of the current state. `ranks`: the states of all ranks; None: there
        is one rank."""
        runner = self._runner
        task = {"task": self._task, "task_hash": self._task_hash}
        own = {
            **task,
            "shape": self._shape(),
            "signals": self._signals(),
            "numbers": self._numbers(),
            "total_steps": runner.total_steps,
            **self._learner.saved(),
            "window": runner.window.state(),
            "best_return": runner.best.mean_return,
            "judged_by": runner.best.judged_by,
            "ranks": [self._rank_state()] if ranks is None else ranks,
        }
        iteration = runner.current_learning_iteration
        state = runner.alg.save() | {"iter": iteration, "infos": None, OWN: own}
        counts = {"iteration": iteration, "total_steps": runner.total_steps}
        about = {
            **counts,
            **task,
            "algorithm": runner.agent.algorithm.name,
            "networks": describe_networks(runner.env, runner.agent),
            "attempt": self._attempt,
        }
        return files.pack_checkpoint(state, about)

    def resume(
        self, path: Path, state: dict[str, Any] | None = None, in_place: bool = False
    ) -> list[str]:
        """Continue from a checkpoint.

        With the same number of workers and environments, the same engine, seed and numbers of the
        environment, the whole state is restored. Otherwise networks, optimiser and counters are,
        and the environments begin anew.

        Args:
            state: what `read_checkpoint` has returned for it; None: it is read.
            in_place: whether the same run continues, with its metrics.

        Returns:
            Descriptions of what could not be restored.

        Raises:
            UserError: the file is not a checkpoint, is of another task or of other networks, or has
                all the iterations already; or the same run has other rewards, observations or
                actions now.
        """
        state = files.read_checkpoint(path) if state is None else state
        try:
            if in_place:
                self._check_signals(path, state.get(OWN) or {})
            self._check(path, state)
            return self._restore(state, path.parent)
        except files.UNREADABLE as error:
            why = f"{type(error).__name__}: {in_a_line(error)}"
            raise UserError(f"checkpoint {path} cannot be restored here: {why}") from error

    def _check_signals(self, path: Path, own: dict[str, Any]) -> None:
        """Raise UserError if a run would mix rewards, observations or actions of two kinds."""
        then, now = own.get("signals", {}), self._signals()
        changed = [kind for kind in now if kind in then and then[kind] != now[kind]]
        if changed:
            found = "; its ".join(f"{k} were {then[k]}, and are {now[k]} now" for k in changed)
            advice = (
                "begin a run of its own by --fork, or one with its networks alone by --init-from"
            )
            if changed != ["rewards"]:  # Networks of other sizes.
                advice = "or begin a new run, by --init-from if its actor still fits"
            raise UserError(
                f"the task's code has changed since {path.name}: its {found}. The run cannot "
                f"continue with others: undo the change, {advice}."
            )

    def _signals(self) -> dict[str, Any]:
        """Return the names of reward terms, and names and sizes of observations and actions."""
        env = self._runner.env
        sizes = observation_sizes(env).items()
        return {
            "rewards": list(env.reward_names),
            "observations": {k: list(v) if isinstance(v, tuple) else v for k, v in sizes},
            "actions": env.num_actions,
        }

    def _restore(self, state: dict[str, Any], folder: Path) -> list[str]:
        runner, own = self._runner, state.get(OWN)
        runner.current_learning_iteration = state["iter"]
        lost = self._learner.restore(state)
        if own is None:
            self._seed_anew()
            return [*lost, "random states, environments and counters, which are not in it"]
        runner.total_steps = own["total_steps"]
        runner.window.restore(own["window"])
        then, now, ranks = own["shape"], self._shape(), own["ranks"]
        changed = [what for what in now if then.get(what) != now[what]]
        saved, numbers = own.get("numbers", {}), self._numbers()
        then, now = then | saved, now | numbers
        changed += [what for what, old in saved.items() if numbers.get(what, old) != old]
        is_declared = runner.env.declares(ranks[0]["env"])
        if "sim" in ranks[0] and not changed and is_declared:
            return lost + self._restore_rank(ranks[runner.collectives.rank], folder)
        self._seed_anew()
        runner.env.begin_from([rank["env"] for rank in ranks])
        runner.env.reset()
        why = "; ".join(f"{what} {then.get(what)}, now {now[what]}" for what in changed)
        why = "--no-save-worlds" if "sim" not in ranks[0] else why or "other state is declared"
        lost.append(f"environments and random states, which begin anew ({why})")
        if runner.alg.values("rank"):
            lost.append("what the learner remembers on each rank, which begins anew with them")
        return lost

    def _check(self, path: Path, state: dict[str, Any]) -> None:
        """Raise UserError if this run cannot continue from a checkpoint."""
        own = state.get(OWN)
        if own is not None and own["task"] != self._task:
            raise UserError(f"checkpoint {path} is of the task {own['task']}, not of {self._task}.")
        self._learner.check(path, state)
        total = self._runner.agent.max_iterations
        if state["iter"] >= total:
            raise UserError(
                f"checkpoint {path} has {state['iter']} iterations, and --agent.max-iterations is "
                f"{total}: raise it to train further."
            )

    def _seed_anew(self) -> None:
        """Seed the random generators differently from the beginning of the run."""
        runner = self._runner
        place = runner.agent.seed + runner.collectives.rank
        seed = (place + 1_000_003 * runner.current_learning_iteration) % 2**31
        random_numbers.seed_everything(seed)
        runner.env.generator.manual_seed(seed + 2**31)

    def _shape(self) -> dict[str, Any]:
        """Return what must be equal for a rank to continue another one's environments."""
        env, model = self._runner.env, self._runner.env.sim.model
        return {
            "workers": self._runner.collectives.world_size,
            "worlds per worker": env.num_envs,
            "engine": type(env.sim).__name__,
            "reward terms": list(env.reward_names),
            "model": [model.nq, model.nv, model.na, model.nu, model.nbody, model.nsensordata],
        }

    def _numbers(self) -> dict[str, Any]:
        """Return the numbers with which an environment is built, by flag."""
        agent = self._runner.agent
        begun = {"seed": agent.seed, "init_at_random_ep_len": agent.init_at_random_ep_len}
        values = by_dotted_name({"agent": begun, "env": to_dict(self._runner.env.cfg)})
        return {
            f"--{name.replace('_', '-')}": value
            for name, value in values.items()
            if decides_learning(name) and name != "env.num_envs"
        }

    def _write_rank_file(self, paths: list[Path]) -> dict[str, Any] | None:
        """Write what the learner remembers on this rank, if it is large and one of `paths` is not
        BEST; return how the checkpoint names it. None: it is to stand in the checkpoint."""
        runner, folder = self._runner, self._folder
        if folder is None or not runner.alg.remembers_much:
            return None
        if paths[0].name == BEST:
            return {"file": None}
        iteration, rank = runner.current_learning_iteration, runner.collectives.rank
        return {"file": write_rank_file(folder, rank, iteration, runner.alg.states("rank"))}

    def _rank_state(self, file: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what belongs to this rank alone: its environments and its random generators.

        `file`: how the file is named that has what the learner remembers. None: there is none.
        """
        runner = self._runner
        kinds: tuple[Any, ...] = ("env", "rank") if file is None else ("env",)
        fields = {k: v for k, v in runner.env.sim.state().items() if v.numel()}
        return {
            "random": random_numbers.random_states(runner.device),
            "sim": on_cpu(fields),
            "env": on_cpu(runner.env.state_dict()),
            "learner": runner.alg.states(*kinds),
            **(file or {}),
            "evaluation": runner.evaluator.state_dict() if runner.evaluator else {},
        }

    def _restore_rank(self, state: dict[str, Any], folder: Path) -> list[str]:
        """Restore what `_rank_state` returned, with a file in `folder`; return what is lost."""
        runner = self._runner
        check_fields(state["sim"], runner.env.sim.state())
        runner.env.sim.restore(state["sim"])
        lost = runner.env.load_state_dict(state["env"])
        remembered = state.get("learner") or _of_earlier(state)
        if "file" in state:
            found = read_rank_file(folder, state["file"])
            texts = runner.collectives.all_gather_text(found if isinstance(found, str) else None)
            whys = {f"rank {rank}: {why}" for rank, why in enumerate(texts) if why is not None}
            if 0 < len(whys) < len(texts):  # One that remembers nothing may wait with its updates.
                whys.add("the other ranks, which have to learn in step")
            lost += [f"what the learner remembers on {why}" for why in sorted(whys)]
            if isinstance(found, dict) and not whys:
                remembered |= found
        if changed := runner.alg.misfits(remembered, "rank"):
            lost.append(f"what the learner remembers on each rank: other shape of {changed[0]!r}")
        kinds: tuple[Any, ...] = ("env",) if changed else ("rank", "env")
        runner.alg.load_states(remembered, *kinds)
        if runner.evaluator:
            runner.evaluator.load_state_dict(state.get("evaluation", {}))
        random_numbers.restore_random_states(state["random"], runner.device)
        runner.is_resumed = True
        return lost


def _of_earlier(rank: dict[str, Any]) -> dict[str, Any]:
    """Return a learner's state in the checkpoint of an earlier version, as `states` does."""
    actor, critic = rank.get("memories", (None, None))
    found = {"actor_memory": actor, "critic_memory": critic, "novelty": rank.get("novelty")}
    return {name: [None, value] for name, value in found.items() if value is not None}
