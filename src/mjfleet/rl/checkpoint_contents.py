"""Saving a run so that it can go on as if it had never stopped, and going on. Runs in a worker."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mjfleet.env.env_state import EnvState
from mjfleet.errors import UserError
from mjfleet.rl.checkpoint_files import (
    OWN,
    check_shapes,
    matrices,
    pack,
    random_states,
    read_checkpoint,
    restore_random_states,
    seed_everything,
    unpack,
)
from mjfleet.rl.checkpoint_schedule import CheckpointSchedule
from mjfleet.rl.phase import Phase
from mjfleet.rl.runner import Runner
from mjfleet.runs.checkpoint_names import BEST

logger = logging.getLogger(__name__)


class Checkpointer:
    """Writes and reads the checkpoints of a run. Each rank has one; rank 0's writes."""

    def __init__(
        self, runner: Runner, task: str, folder: Path, keep: int | None, worlds: bool = True
    ) -> None:
        """Be made with the environment, before it takes a step.

        Args:
            runner: whose state is saved.
            task: the task's name.
            folder: for the files model_<iteration>.pt and BEST. Of one that is there, the return is
                the best so far.
            keep: how many of them stay besides BEST; None: all.
            worlds: whether they hold the worlds and random states of all ranks.
        """
        self._runner = runner
        self._task = task
        self._schedule = CheckpointSchedule(folder, runner.agent.save_interval, keep)
        self._keeps_worlds = worlds
        self._env_state = EnvState(runner.env)
        if (folder / BEST).exists():
            self._remember_best(folder / BEST)

    def save(self, is_last: bool, before: Callable[[], object] = lambda: None) -> list[Path]:
        """Write the checkpoints that are due, of all ranks, on all of them at the same time.

        One is due every `agent.save_interval` iterations and at the end; BEST where the policy has
        just been evaluated better than ever.

        Args:
            is_last: no iteration follows.
            before: called before this rank writes.

        Returns:
            The files that this rank has written.

        Raises:
            CheckpointError: that has failed several times running.
        """
        runner = self._runner
        iteration = runner.current_learning_iteration
        paths = self._schedule.due(iteration, is_last=is_last, is_best=runner.is_best)
        if not paths:
            return []
        with runner.heartbeat.excused(Phase.SAVE):
            ranks = self._gather_ranks()
            if ranks is None:
                return []
            before()
            return paths if self._schedule.write(paths, self._state(ranks), is_last=is_last) else []

    def resume(self, path: Path) -> list[str]:
        """Go on from a checkpoint.

        With the same number of workers and worlds on the same engine everything is as it was; else
        what is global is: networks, optimiser, counters.

        Returns:
            What could not be kept, in words.

        Raises:
            UserError: it is no checkpoint, one of another task or of other networks, or one in
                which all iterations are done.
        """
        runner = self._runner
        state = read_checkpoint(path)
        own = state.get(OWN)
        self._check(path, state)
        runner.current_learning_iteration = state["iter"]
        lost = self._restore_learning(state)
        if own is None:
            self._seed_anew()
            return [*lost, "random states, worlds and counters, which are not in it"]
        runner.total_steps = own["total_steps"]
        runner.window.restore(own["window"], runner.env.reward_names)
        then, now = own["shape"], self._shape()
        if "sim" not in own["ranks"][0]:
            return self._begin_worlds_anew(own, lost, "--no-save-worlds")
        if then == now:
            other = self._restore_rank(own["ranks"][runner.collectives.rank])
            what = f"{', '.join(other)} of the environment, which has another shape now"
            return [*lost, *([what] if other else [])]
        changed = [what for what in now if then.get(what) != now[what]]
        changes = [f"{what} {then.get(what)}, now {now[what]}" for what in changed]
        return self._begin_worlds_anew(own, lost, "; ".join(changes))

    def _remember_best(self, path: Path) -> None:
        """What is to be surpassed, however far back the run goes on."""
        try:
            self._runner.best_return = read_checkpoint(path)[OWN]["best_return"]
        except UserError as error:
            logger.warning("%s The next evaluation replaces it.", error)

    def _check(self, path: Path, state: dict[str, Any]) -> None:
        """Refuse a checkpoint that this run cannot go on from."""
        own, built = state.get(OWN), self._runner.alg.save()
        if own is not None and own["task"] != self._task:
            theirs, ours = matrices(state["actor_state_dict"]), matrices(built["actor_state_dict"])
            raise UserError(
                f"checkpoint {path} is of the task {own['task']}, not of {self._task}: its actor "
                f"is {theirs}, this task's is {ours}."
            )
        check_shapes(path, state, built)
        total = self._runner.agent.max_iterations
        if state["iter"] >= total:
            raise UserError(
                f"checkpoint {path} has {state['iter']} iterations, all of --agent.max-iterations "
                f"{total}; a greater total trains on."
            )

    def _restore_learning(self, state: dict[str, Any]) -> list[str]:
        """Networks, normalisers, optimiser and learning rate; returns what could not be kept."""
        own, algorithm = state.get(OWN), self._runner.agent.algorithm
        parts = {"actor": True, "critic": True, "optimizer": True, "rnd": "rnd_state_dict" in state}
        lost = []
        if own is not None and own["optimizer"] != algorithm.optimizer:
            parts["optimizer"] = False
            lost.append(f"the state of the optimiser ({own['optimizer']})")
        self._runner.alg.load(state, parts, strict=True)
        # A rate that was set anew since then counts; otherwise that which the schedule had reached.
        if own is not None and own["configured_learning_rate"] != algorithm.learning_rate:
            self._runner.alg.learning_rate = algorithm.learning_rate
        return lost

    def _restore_rank(self, state: dict[str, Any]) -> list[str]:
        """Put this rank where it was; returns the attributes for which that cannot be done."""
        runner = self._runner
        runner.env.sim.restore(state["sim"])
        other_shape = self._env_state.restore(state["env"])
        for model, memory in zip(self._models(), state["memories"], strict=True):
            if memory is not None:
                pair = isinstance(memory, tuple)
                on_device = [part.to(runner.device) for part in (memory if pair else (memory,))]
                model.reset(hidden_state=tuple(on_device) if pair else on_device[0])
        if state["novelty"] is not None and runner.alg.rnd:
            average: Any = runner.alg.rnd.reward_normalizer.disc_avg
            average.avg = state["novelty"].to(runner.device)
        restore_random_states(state["random"], runner.device)
        runner.is_resumed = True
        return other_shape

    def _begin_worlds_anew(self, own: dict[str, Any], lost: list[str], why: str) -> list[str]:
        """Keep of the environment what belongs to no world; returns what could not be kept."""
        worlds = own["shape"]["worlds per worker"]
        self._env_state.restore_counters(own["ranks"][0]["env"], worlds)
        self._seed_anew()
        return [*lost, f"worlds and random states, which begin anew ({why})"]

    def _seed_anew(self) -> None:
        """Draw other random numbers than the run did when it began."""
        runner = self._runner
        place = runner.agent.seed + runner.collectives.rank
        seed = (place + 1_000_003 * runner.current_learning_iteration) % 2**31
        seed_everything(seed)
        runner.env.generator.manual_seed(seed + 2**31)

    def _shape(self) -> dict[str, Any]:
        """What has to be the same for a rank to take up another one's worlds."""
        env = self._runner.env
        model = env.sim.model
        return {
            "workers": self._runner.collectives.world_size,
            "worlds per worker": env.num_envs,
            "engine": type(env.sim).__name__,
            "reward terms": list(env.reward_names),
            "model": [model.nq, model.nv, model.na, model.nu, model.nbody, model.nsensordata],
        }

    def _state(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """What a checkpoint holds, given the states of all ranks."""
        runner = self._runner
        own = {
            "task": self._task,
            "shape": self._shape(),
            "total_steps": runner.total_steps,
            "optimizer": runner.agent.algorithm.optimizer,
            "configured_learning_rate": runner.agent.algorithm.learning_rate,
            "window": runner.window.state(),
            "best_return": runner.best_return,
            "ranks": ranks,
        }
        learning = runner.alg.save() | {"iter": runner.current_learning_iteration, "infos": None}
        return learning | {OWN: own}

    def _gather_ranks(self) -> list[dict[str, Any]] | None:
        """Return the states of all ranks on rank 0, which writes, and None on the others."""
        collectives = self._runner.collectives
        if not self._keeps_worlds:
            return [{"env": self._env_state.counters()}] if collectives.rank == 0 else None
        gathered = collectives.gather_bytes(pack(self._rank_state()))
        return None if gathered is None else list(map(unpack, gathered))

    def _rank_state(self) -> dict[str, Any]:
        """What belongs to this rank alone: its worlds and its random generators."""
        runner = self._runner
        rnd = runner.alg.rnd
        average = getattr(rnd.reward_normalizer, "disc_avg", None) if rnd else None
        # Copies: fields of one buffer would each bring along all of it that follows.
        fields = {k: v.to("cpu", copy=True) for k, v in runner.env.sim.state().items()}
        return {
            "random": random_states(runner.device),
            "sim": {k: v for k, v in fields.items() if v.numel()},
            "env": self._env_state.changed(),
            "memories": [model.get_hidden_state() for model in self._models()],
            "novelty": average.avg if average else None,
        }

    def _models(self) -> tuple[Any, Any]:
        """The networks themselves, within what torch.compile may have wrapped around them."""
        alg = self._runner.alg
        return alg.actor, alg.critic
