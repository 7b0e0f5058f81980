"""The training loop: collect, check, update, evaluate, exchange, log, save. Runs in a worker."""

import contextlib
import math
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch

from mjfleet.config import AgentConfig
from mjfleet.env import Env
from mjfleet.env.episode_statistics import Sums, early_end
from mjfleet.loggers.logger import Row
from mjfleet.rl.build_algorithm import make_algorithm
from mjfleet.rl.checks.replicas import check_replicas, checksum
from mjfleet.rl.checks.rollout_guard import RolloutGuard
from mjfleet.rl.checks.simulation_warnings import SimulationWarnings, warning_values
from mjfleet.rl.device import graph_capture
from mjfleet.rl.device.clock import DeviceClock
from mjfleet.rl.device.gpu_usage import read_usage
from mjfleet.rl.device.graph_capture import Capture
from mjfleet.rl.divergence import DivergedError, check_networks, find_trouble
from mjfleet.rl.evaluation.best_policy import BestPolicy
from mjfleet.rl.evaluation.evaluator import Evaluator
from mjfleet.rl.learner import Setup, Step
from mjfleet.rl.normalizers import average_batch_statistics
from mjfleet.rl.ranks import statistics as rank_statistics
from mjfleet.rl.ranks.collectives import Collectives
from mjfleet.rl.ranks.statistics import EpisodeWindow
from mjfleet.rl.runner_hook import RunnerHook
from mjfleet.rl.worker_phases import HeartbeatBase, Phase
from mjfleet.sim.deferred import Deferred, read
from mjfleet.utils.console import print_line

HINT_ITERATION = 2  # The iteration after which a hint about short episodes is due.


class Runner:
    """Collects rollouts and learns from them. Callbacks log metrics and save checkpoints.

    Each rank has a runner. All ranks do every iteration together: they update by the same
    gradients, exchange reports, and stop or fail together.
    """

    def __init__(
        self,
        env: Env[Any],
        agent: AgentConfig,
        device: str,
        num_threads: int,
        load: Callable[..., Any],
        collectives: Collectives | None = None,
        heartbeat: HeartbeatBase | None = None,
        dump_to: Path | None = None,
        evaluator: Evaluator | None = None,
        capture: Capture | Literal["auto"] | None = "auto",
    ) -> None:
        """Build networks, algorithm and storage.

        Args:
            env: the environment, on the same device.
            agent: networks, algorithm and hyperparameters.
            device: torch's name of the device.
            num_threads: CPU threads that an update may use.
            load: finds `module:name`, see FoundTask.load.
            collectives: connects the ranks. None: there is one rank.
            heartbeat: receives a beat after every step.
            dump_to: where environments with numbers that are not finite are dumped. None: nowhere.
            evaluator: evaluates the policy at intervals. None: there are no evaluations.
            capture: captures updates. `auto`: on a GPU, as `agent.cuda_graphs` says. None: nothing.

        Raises:
            UserError: a rollout does not fit in memory, or a class of the user's cannot be loaded
                or does not fit the others.
        """
        self.env, self.agent, self.device = env, agent, device
        self.heartbeat = heartbeat or HeartbeatBase()
        self.collectives = collectives or Collectives()
        if capture == "auto":
            is_captured = agent.cuda_graphs and env.sim.device.type == "cuda"
            capture = graph_capture.capture if is_captured else None
        setup = Setup(env, agent, device, num_threads, load, self.collectives, capture)
        self.alg: Any = make_algorithm(setup)
        """The Learner."""
        self.alg.beat = self.heartbeat.beat
        for optimizer in self.alg.optimizers().values():
            optimizer.register_step_pre_hook(lambda *_: self.heartbeat.beat())
        self.current_learning_iteration = 0
        self.total_steps = 0
        self.window = EpisodeWindow(env.reward_names)
        self.is_resumed = False  # Whether the environments continue from an earlier run's state.
        self.warnings: list[str] = []
        """What the newest iteration warns of. Rank 0 knows it."""
        self._warnings = SimulationWarnings()
        self.evaluator = evaluator
        judged_by = evaluator.judged_by if evaluator else None
        self.best = BestPolicy(judged_by, self.collectives.rank == 0)
        self._guard = RolloutGuard(env, self.alg.num_steps, dump_to)
        self._clock = DeviceClock(device)
        self._make_hook = load(agent.runner_hook, RunnerHook) if agent.runner_hook else RunnerHook

    def train(
        self,
        on_iteration: Callable[[Row], None],
        stop_signal: Callable[[], int | None],
        save: Callable[[bool], list[Path]] = lambda is_last: [],
    ) -> int | None:
        """Train until `agent.max_iterations` iterations are done or a rank receives a signal.

        Args:
            on_iteration: called with the row of each iteration, the same on every rank.
            stop_signal: called after each iteration; returns the signal that this rank received.
            save: called on every rank after each iteration, with True after the last one, to write
                the checkpoints that are due; returns this rank's files.

        Returns:
            The signal that ended training early, the same on every rank. None: training is done.

        Raises:
            DivergedError: on some rank a state, observation, reward or loss is not finite.
            OutOfStepError: the ranks' parameters differ.
        """
        iterations = self.iterations(stop_signal, save)
        while True:
            try:
                on_iteration(next(iterations))
            except StopIteration as end:
                return end.value

    def iterations(
        self,
        stop_signal: Callable[[], int | None],
        save: Callable[[bool], list[Path]] = lambda is_last: [],
    ) -> Generator[Row, None, int | None]:
        """Train as `train` does, and yield the row of each iteration before it is saved."""
        assert self.env.group_size == self.agent.algorithm.envs_per_group
        if self.agent.init_at_random_ep_len and not self.is_resumed:
            self.env.start_at_random_times()
        if self.alg.fallback_reason and self.collectives.rank == 0:
            print_line(self.alg.fallback_reason)
        self.alg.train_mode()
        hook = self._make_hook(self)
        if self.alg.is_distributed:
            self.alg.broadcast_parameters()
        self.collectives.take_seconds()
        before = time.perf_counter()
        first = self.current_learning_iteration + 1
        for iteration in range(first, self.agent.max_iterations + 1):
            hook.before_iteration(iteration)
            may_compile = self.alg.compiles and iteration == first
            with self.heartbeat.excused() if may_compile else contextlib.nullcontext():
                sums, ranks = self._run_iteration(iteration, stop_signal)
            if iteration == first:
                self.check_undeclared()
            now = time.perf_counter()
            row = self._summarize(sums, ranks, now - before)
            yield row
            hook.after_iteration(row)
            before = now
            is_last = iteration == self.agent.max_iterations
            stop = int(max(values["stop"] for values in ranks))
            if saved := save(bool(stop) or is_last):
                self.check_undeclared()
            hook.after_save(saved)
            if stop and not is_last:
                return stop
        return None

    def check_undeclared(self) -> None:
        """Raise UserError if environment or learner have changed what they have not declared."""
        self.env.check_undeclared()
        self.alg.check_undeclared()

    def _run_iteration(
        self, iteration: int, stop_signal: Callable[[], int | None]
    ) -> tuple[Sums, list[dict[str, float]]]:
        """Do one iteration; return its sums over all ranks, and the values of each rank."""
        self._clock.mark()
        about_policy = self._collect(iteration)
        self._clock.mark()
        unread_losses = self._update(iteration)
        average_batch_statistics(self.alg)
        self._clock.mark()
        evaluation = self._evaluate(iteration)
        self._clock.mark()
        sim = self.env.sim
        # What this rank reads from the device, all at once.
        statistics, added, warnings, losses, policy, is_finite, own_checksum = read(
            self.env.deferred_statistics(),
            self.env.deferred_additions(),
            sim.deferred_warnings(),
            unread_losses,
            about_policy,
            Deferred(self._guard.is_finite, all),
            checksum(self.alg),
        )
        collect, learn, evaluate = self._clock.take_seconds()
        if evaluation:
            evaluation["eval/seconds"] = evaluate, evaluation["eval/seconds"][1]
        sums = {
            **statistics,
            **evaluation,
            **{f"loss/{name}": (loss, 1.0) for name, loss in losses.items()},
            **{name: (number, 1.0) for name, number in policy.items()},
            "collect_seconds": (collect, 1.0),
            "learn_seconds": (learn, 1.0),
        }
        additions = {f"added/{i}": number for i, number in enumerate(added)}
        values = {
            # Including the wait for other ranks. A part of the seconds above.
            "collective_seconds": self.collectives.take_seconds(),
            "stop": stop_signal() or 0,
            "diverged": not (is_finite and all(map(math.isfinite, losses.values()))),
            "checksum": own_checksum,
            # All ranks have to save together: the first one's counts, which has the file.
            "best_return": self.best.least,
            **additions,
            **warning_values(sim.warning_kinds, warnings, sim.buffer_use),
            **(self.evaluator.take_warnings() if self.evaluator else {}),
            **read_usage(self.device),
        }
        whole, ranks = rank_statistics.gather(self.collectives, sums, values)
        if any(rank["diverged"] for rank in ranks):
            found = find_trouble(self._guard, self.alg, iteration, losses)
            self._raise_diverged(iteration, *found)
        check_replicas(iteration, [int(rank["checksum"]) for rank in ranks])
        self.env.end_iteration([sum(rank.pop(name) for rank in ranks) for name in additions])
        self.current_learning_iteration = iteration
        return whole, ranks

    def _collect(self, iteration: int) -> Deferred[dict[str, float]]:
        """Collect one rollout; end the run if a rank's is not finite.

        Returns:
            The learner's numbers about the policy, which may still be computed.
        """
        self.heartbeat.enter(Phase.COLLECT, iteration)
        torch.set_num_threads(1)  # The physics engine has its own threads; torch's would compete.
        self._guard.begin()
        with torch.inference_mode():
            self._roll()
            numbers = self.alg.policy_metrics()
            values = [*numbers.values()] or [torch.zeros(0, device=self.device)]
            about_policy = torch.hstack(values)
        # To ask a GPU now would be to wait for it. Where updates are graphs, this is read with the
        # other numbers of the iteration, after an update that is not kept.
        if not self.alg.is_captured:
            trouble, flags = find_trouble(self._guard, self.alg, iteration, {})
            # All ranks have to end: one that went on would wait forever for the others.
            if self.collectives.total([trouble is not None])[0]:
                self._raise_diverged(iteration, trouble, flags)
        return Deferred(about_policy, lambda found: dict(zip(numbers, found, strict=True)))

    def _roll(self) -> None:
        """Take the steps of a rollout, and check what they gave."""
        if self.env.group_size > 1:
            # The vine of Schulman et al. (2015, arXiv:1502.05477): the first environment of a group
            # lives on from rollout to rollout, and the others leave it at each rollout's start.
            self.env.take_over(self.env.env_ids * self.env.group_size)
        observations = self.env.get_observations()
        for _ in range(self.alg.num_steps):
            before, actions = observations, self.alg.act(observations)
            observations, rewards, dones, extras = self.env.step(actions)
            self.heartbeat.beat()
            step = Step(observations, rewards, dones, extras["time_outs"])
            self.alg.record(before, actions, step)
        self._guard.check(self.alg.checked)

    def _update(self, iteration: int) -> Deferred[dict[str, float]]:
        """Learn from the rollout; return the mean losses."""
        self.heartbeat.enter(Phase.LEARN)
        torch.set_num_threads(self.alg.torch_threads)
        try:
            return self.alg.learn()
        except (RuntimeError, ValueError):
            check_networks(self.alg, iteration)  # All ranks fail in the same minibatch.
            raise

    def _evaluate(self, iteration: int) -> Sums:
        """Evaluate the policy in this rank's share of the episodes, if an evaluation is due."""
        evaluator = self.evaluator
        if not evaluator:
            return {}
        is_due = iteration % evaluator.interval == 0 or iteration == self.agent.max_iterations
        sums = evaluator.nothing
        if is_due:
            self.heartbeat.enter(Phase.EVALUATE)
            torch.set_num_threads(1)
            self.alg.train_mode(False)
            sums = evaluator.evaluate(self.alg.networks()["actor"], self.heartbeat.beat)
            self.alg.train_mode()
        columns = {f"eval/{name}": pair for name, pair in sums.items()}
        return columns | {"eval/seconds": (0.0, float(is_due))}

    def _raise_diverged(self, iteration: int, trouble: str | None, flags: str) -> NoReturn:
        """End the run on every rank with the same message, which names the trouble of each."""
        flags = next(filter(None, self.collectives.all_gather_text(flags)), "")
        troubles = enumerate(self.collectives.all_gather_text(trouble))
        where = "on rank {} " if self.alg.is_distributed else ""
        texts = [where.format(rank) + text for rank, text in troubles if text is not None]
        texts.append(f"the learning rate is {self.alg.learning_rate:.3g}")
        raise DivergedError(f"iteration {iteration}: {'; '.join(texts)}", flags)

    def _summarize(self, sums: Sums, ranks: Sequence[dict[str, float]], seconds: float) -> Row:
        """Return the row of an iteration, which took `seconds`."""
        iteration = self.current_learning_iteration
        sums = self.best.judge(iteration, sums, ranks)
        steps = self.env.num_envs * self.alg.num_steps * len(ranks)
        self.total_steps += steps
        counts = iteration, self.total_steps, steps / seconds, self.alg.learning_rate
        row = rank_statistics.make_row(*counts, self.window.add(sums), sums, ranks)
        if self.collectives.rank == 0:
            nan_resets = round(sums["nan_resets"][0])
            self.warnings = self._warnings.describe(ranks, self.env.sim.buffer_use, nan_resets)
            if self.evaluator:
                self.warnings += self.evaluator.describe_warnings(ranks)
            if iteration == HINT_ITERATION:
                self.warnings += early_end(row["mean_episode_length"], self.env.max_episode_length)
        return row
