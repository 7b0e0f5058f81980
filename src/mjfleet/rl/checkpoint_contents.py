"""Saves the complete state of a run, and resumes a run from it. Runs in a worker."""

from pathlib import Path
from typing import Any

from mjfleet.config import by_dotted_name, to_dict
from mjfleet.config.rank_seed import rank_seed
from mjfleet.config.train_config import decides_learning
from mjfleet.env import random_numbers
from mjfleet.env.return_checks import observation_sizes
from mjfleet.errors import UserError
from mjfleet.rl import checkpoint_files as files
from mjfleet.rl.checkpoint_files import OWN, check_fields, check_optimizer
from mjfleet.rl.divergence import check_networks
from mjfleet.rl.initial_networks import describe_networks
from mjfleet.rl.runner import Runner
from mjfleet.rl.worker_phases import Phase
from mjfleet.runs.checkpoints import BEST
from mjfleet.utils.console import in_a_line


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

        If `folder` holds a BEST, its return is the best so far. `keep`: how many others are kept
        (None: all). `worlds`: whether they hold environments and random states of all ranks.
        `task_hash`: of the task's code, see task_snapshot.py. `attempt`: the random name of the
        attempt, see attempts.py.
        """
        self._runner, self._task, self._task_hash = runner, task, task_hash
        self._attempt, self._keeps_worlds = attempt, worlds
        if folder is None:
            return
        self._schedule = files.CheckpointSchedule(folder, runner.agent.save_interval, keep)
        if (folder / BEST).exists():
            runner.best.read(folder / BEST)

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
                gathered = runner.collectives.gather_bytes(files.pack(self._rank_state())) or []
                while gathered:  # What is unpacked is not held twice.
                    ranks.append(files.unpack(gathered.pop(0)))
            elif rank == 0:
                env = runner.env.state_dict()
                ranks = [{"env": env | {"states": env["states"] | {"rows": {}, "sizes": {}}}}]
            if rank != 0:
                return []
            data = self.packed(ranks)
            return paths if self._schedule.write(paths, data, is_last=is_last) else []

    def packed(self, ranks: list[dict[str, Any]] | None = None) -> bytes:
        """Return a checkpoint of the current state. `ranks`: the states of all ranks; None: there
        is one rank."""
        runner, learning = self._runner, self._runner.agent.algorithm
        task = {"task": self._task, "task_hash": self._task_hash}
        own = {
            **task,
            "shape": self._shape(),
            "signals": self._signals(),
            "numbers": self._numbers(),
            "total_steps": runner.total_steps,
            "optimizer": learning.optimizer,
            "teacher": self._teacher(),
            "configured_learning_rate": learning.learning_rate,
            "schedule": learning.schedule,
            "window": runner.window.state(),
            "best_return": runner.best.mean_return,
            "judged_by": runner.best.judged_by,
            "ranks": [self._rank_state()] if ranks is None else ranks,
        }
        iteration = runner.current_learning_iteration
        state = runner.alg.save() | {"iter": iteration, "infos": None, OWN: own}
        counts = {"iteration": iteration, "total_steps": runner.total_steps}
        about = {**counts, **task, "networks": describe_networks(runner), "attempt": self._attempt}
        return files.pack_checkpoint(state, about)

    def resume(
        self, path: Path, state: dict[str, Any] | None = None, in_place: bool = False
    ) -> list[str]:
        """Continue from a checkpoint.

        With the same number of workers and environments, the same engine, seed and numbers of the
        environment, the whole state is restored. Otherwise networks, optimiser and counters are,
        and the environments begin anew.

        Args:
            path: the file.
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
            return self._restore(state)
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

    def _restore(self, state: dict[str, Any]) -> list[str]:
        runner, own = self._runner, state.get(OWN)
        runner.current_learning_iteration = state["iter"]
        lost = self._restore_learning(state)
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
            return lost + self._restore_rank(ranks[runner.collectives.rank])
        self._seed_anew()
        runner.env.begin_from([rank["env"] for rank in ranks])
        runner.env.reset()
        why = "; ".join(f"{what} {then.get(what)}, now {now[what]}" for what in changed)
        why = "--no-save-worlds" if "sim" not in ranks[0] else why or "other state is declared"
        lost.append(f"environments and random states, which begin anew ({why})")
        return lost

    def _check(self, path: Path, state: dict[str, Any]) -> None:
        """Raise UserError if this run cannot continue from a checkpoint."""
        own, built = state.get(OWN), self._runner.alg.save()
        if own is not None and own["task"] != self._task:
            raise UserError(f"checkpoint {path} is of the task {own['task']}, not of {self._task}.")
        if not self._keeps_others(own):
            built.pop("critic_state_dict")
        files.check_shapes(path, state, built)
        if self._keeps_optimizer(own):
            theirs, ours = (x.get("extra_state_dict", {}) for x in (state, built))
            if misfit := files.misfit_of(theirs, ours):
                raise UserError(
                    f"checkpoint {path} is of an algorithm with other networks. Of its "
                    f"`modules()`, {misfit}. Begin a new run by --init-from."
                )
            check_optimizer(state["optimizer_state_dict"], self._runner.alg.optimizer)
        total = self._runner.agent.max_iterations
        if state["iter"] >= total:
            raise UserError(
                f"checkpoint {path} has {state['iter']} iterations, and --agent.max-iterations is "
                f"{total}: raise it to train further."
            )

    def _restore_learning(self, state: dict[str, Any]) -> list[str]:
        """Restore networks, optimiser and learning rate; return what could not be restored."""
        own, alg = state.get(OWN), self._runner.alg
        parts = {"actor": True, "critic": True, "optimizer": True, "rnd": "rnd_state_dict" in state}
        lost = []
        if not self._keeps_others(own):
            parts["critic"] = False
            lost.append("the value network or teacher, which is another one now")
        if own is not None and not self._keeps_optimizer(own):
            parts["optimizer"] = False
            lost.append(f"the state of the optimiser ({own['optimizer']})")
        groups = alg.optimizer.param_groups
        built = [{k: group[k] for k in group if k not in ("params", "lr")} for group in groups]
        alg.load(state, parts, strict=True)
        if own is None:  # Betas, say, are of whoever wrote the file.
            for group, settings in zip(alg.optimizer.param_groups, built, strict=True):
                group.update(settings)
        self._set_learning_rates(own)
        return lost

    def _set_learning_rates(self, own: dict[str, Any] | None) -> None:
        """Set the configured learning rates, unless a schedule has reached others."""
        alg, algorithm = self._runner.alg, self._runner.agent.algorithm
        rate, schedule = algorithm.learning_rate, algorithm.schedule
        # Earlier versions have not written down the schedule: a fixed rate is set then.
        then = (own or {}).get("configured_learning_rate"), (own or {}).get("schedule")
        if then[0] != rate or schedule not in ("adaptive", then[1]):
            alg.set_learning_rate(rate)
        if alg.rnd and algorithm.rnd_cfg:
            for group in alg.rnd.optimizer.param_groups:
                group["lr"] = algorithm.rnd_cfg.learning_rate

    def _keeps_others(self, own: dict[str, Any] | None) -> bool:
        """Return whether the network beside the policy, a value network or teacher, is the same."""
        return own is None or own.get("teacher") == self._teacher()

    def _keeps_optimizer(self, own: dict[str, Any] | None) -> bool:
        same = own is None or own["optimizer"] == self._runner.agent.algorithm.optimizer
        return same and self._keeps_others(own)

    def _teacher(self) -> str | None:
        teacher = self._runner.agent.teacher
        return teacher.checkpoint if teacher else None

    def _seed_anew(self) -> None:
        """Seed the random generators differently from the beginning of the run."""
        runner = self._runner
        place = rank_seed(runner.agent.seed, runner.collectives.rank)
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

    def _rank_state(self) -> dict[str, Any]:
        """Return what belongs to this rank alone: its environments and its random generators."""
        runner, average = self._runner, self._novelty_average()
        # Copied, because a view of a buffer would be saved with the rest of that buffer.
        fields = {k: v.to("cpu", copy=True) for k, v in runner.env.sim.state().items()}
        return {
            "random": random_numbers.random_states(runner.device),
            "sim": {k: v for k, v in fields.items() if v.numel()},
            "env": files.to_cpu(runner.env.state_dict()),
            "memories": [m.get_hidden_state() for m in (runner.alg.actor, runner.alg.critic)],
            "novelty": average.avg if average else None,
            "evaluation": runner.evaluator.state_dict() if runner.evaluator else {},
        }

    def _restore_rank(self, state: dict[str, Any]) -> list[str]:
        """Restore what `_rank_state` returned; return what of the environment is lost."""
        runner = self._runner
        check_fields(state["sim"], runner.env.sim.state())
        runner.env.sim.restore(state["sim"])
        lost = runner.env.load_state_dict(state["env"])
        models = runner.alg.actor, runner.alg.critic
        for model, memory in zip(models, state["memories"], strict=True):
            if isinstance(memory, tuple):  # An LSTM has two tensors.
                model.reset(hidden_state=tuple(part.to(runner.device) for part in memory))
            elif memory is not None:
                model.reset(hidden_state=memory.to(runner.device))
        if state["novelty"] is not None and (average := self._novelty_average()):
            if state["novelty"].numel() != runner.env.num_envs:
                raise ValueError("the average of novelty rewards is of other environments")
            average.avg = state["novelty"].to(runner.device)
        if runner.evaluator:
            runner.evaluator.load_state_dict(state.get("evaluation", {}))
        random_numbers.restore_random_states(state["random"], runner.device)
        runner.is_resumed = True
        return lost

    def _novelty_average(self) -> Any:
        """Return rsl_rl's running average of novelty rewards, which its own checkpoints lack."""
        rnd = self._runner.alg.rnd
        return getattr(rnd.reward_normalizer, "disc_avg", None) if rnd else None
