"""The training loop: collect, check, update, evaluate, exchange, log, save. Runs in a worker."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

import torch
from rsl_rl.modules.distribution import GaussianDistribution

from mjfleet.config import AgentConfig
from mjfleet.env import Env, EpisodeStatistics
from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.nan_dump.nan_guard import RolloutGuard
from mjfleet.rl import captured, rank_statistics
from mjfleet.rl.algorithm_choice import make_algorithm
from mjfleet.rl.captured import Capture
from mjfleet.rl.checkpoint_files import check_shapes, read_checkpoint
from mjfleet.rl.collectives import Collectives
from mjfleet.rl.device_clock import DeviceClock
from mjfleet.rl.divergence import DivergedError, StdWarning, find_trouble, slower
from mjfleet.rl.evaluator import Evaluator
from mjfleet.rl.gpu_usage import read_usage
from mjfleet.rl.phase import HeartbeatBase, Phase
from mjfleet.rl.ppo import PPO
from mjfleet.rl.rank_statistics import RankReport
from mjfleet.rl.replica_checksum import check_replicas, checksum
from mjfleet.rl.runner_hook import RunnerHook
from mjfleet.sim.unread import Unread, first, read
from mjfleet.utils.memory import check_fits

logger = logging.getLogger(__name__)


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
        """
        self.env, self.agent, self.device = env, agent, device
        self.heartbeat = heartbeat or HeartbeatBase()
        self.collectives = collectives or Collectives()
        if capture == "auto":
            is_captured = agent.cuda_graphs and env.sim.device.type == "cuda"
            capture = captured.capture if is_captured else None
        if device == "cpu":
            observed = sum(group[0].numel() for group in env.get_observations().values())
            steps = env.num_envs * agent.num_steps_per_env
            check_fits(f"{steps:,} steps of a rollout", 4 * steps * (observed + env.num_actions))
        self.alg = make_algorithm(env, agent, device, num_threads, load, self.collectives, capture)
        self.alg.on_minibatch = self.heartbeat.beat
        self._compiles = agent.torch_compile_mode is not None or agent.library == "skrl-jax"
        self.current_learning_iteration = 0
        self.total_steps = 0
        self.window = rank_statistics.EpisodeWindow()
        self.is_resumed = False  # Whether the environments continue from an earlier run's state.
        self.best_return: float | None = None  # The greatest of an evaluation so far.
        self.is_best = False  # Whether the current policy reached it.
        self._std_warning = StdWarning(agent)
        self._evaluator = evaluator
        self.judged_by = evaluator.judged_by if evaluator else None  # See Evaluator.
        self._guard = RolloutGuard(env, agent.num_steps_per_env, dump_to)
        self._captures = capture is not None and isinstance(self.alg, PPO)
        self._clock = DeviceClock(device)
        self._make_hook = load(agent.runner_hook, RunnerHook) if agent.runner_hook else RunnerHook

    def train(
        self,
        on_iteration: Callable[[IterationMetrics], None],
        stop_signal: Callable[[], int | None],
        save: Callable[[bool], list[Path]] = lambda is_last: [],
    ) -> int | None:
        """Train until `agent.max_iterations` iterations are done or a rank receives a signal.

        Args:
            on_iteration: called with the metrics of each iteration, the same on every rank.
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
    ) -> Generator[IterationMetrics, None, int | None]:
        """Train as `train` does, and yield the metrics of each iteration before it is saved."""
        assert self.env.group_size == self.agent.algorithm.envs_per_group
        if self.agent.init_at_random_ep_len and not self.is_resumed:
            self.env.start_at_random_times()
        self.alg.train_mode()
        hook = self._make_hook(self)
        if self.alg.is_distributed:
            self.alg.broadcast_parameters()
        self.collectives.take_seconds()
        before = time.perf_counter()
        first = self.current_learning_iteration + 1
        for iteration in range(first, self.agent.max_iterations + 1):
            hook.before_iteration(iteration)
            may_compile = self._compiles and iteration == first
            with self.heartbeat.excused() if may_compile else contextlib.nullcontext():
                reports = self._run_iteration(iteration, stop_signal)
            if iteration == first:
                self.env.check_undeclared()
            now = time.perf_counter()
            metrics = self._summarize(reports, now - before)
            yield metrics
            hook.after_iteration(metrics)
            before = now
            is_last = iteration == self.agent.max_iterations
            stop = max(report.stop for report in reports)
            if saved := save(bool(stop) or is_last):
                self.env.check_undeclared()
            hook.after_save(saved)
            if stop and not is_last:
                return stop
        return None

    def load_policy(self, path: Path) -> None:
        """Load a checkpoint's policy network and its number of iterations.

        Raises:
            UserError: the file is not a checkpoint, or its policy is another network.
        """
        state, actor = read_checkpoint(path), "actor_state_dict"
        check_shapes(path, state, {actor: self.alg.save()[actor]})
        self.alg.load(state, {"actor": True}, strict=True)
        self.current_learning_iteration = state["iter"]

    def get_inference_policy(self) -> Any:
        """Return the policy network, in evaluation mode."""
        self.alg.eval_mode()
        return self.alg.get_policy()

    def _run_iteration(
        self, iteration: int, stop_signal: Callable[[], int | None]
    ) -> list[RankReport]:
        """Do one iteration; return the reports of all ranks."""
        self._clock.mark()
        self._collect(iteration)
        self._clock.mark()
        losses = self._update(iteration)
        self._clock.mark()
        evaluation = self._evaluate(iteration)
        self._clock.mark()
        own = self._report(losses, evaluation, stop_signal)
        gathered = self.collectives.all_gather(rank_statistics.to_numbers(own))
        reports = [rank_statistics.from_numbers(own, numbers) for numbers in gathered]
        if any(report.diverged for report in reports):
            found = find_trouble(self._guard, self.alg, iteration, own.losses)
            self._raise_diverged(iteration, *found)
        check_replicas(iteration, [report.checksum for report in reports])
        self.current_learning_iteration = iteration
        return reports

    def _report(
        self,
        unread_losses: Unread[dict[str, float]],
        evaluation: EpisodeStatistics | None,
        stop_signal: Callable[[], int | None],
    ) -> RankReport:
        """Read this rank's numbers of an iteration from the device, all at once."""
        env, distribution = self.env, self.alg.get_policy().distribution
        # Of another distribution than a Gaussian, the rollout holds no standard deviations.
        is_gaussian = isinstance(distribution, GaussianDistribution)
        parameters = cast(Any, self.alg.storage.distribution_params)
        deviations = parameters[1] if is_gaussian else self.alg.actor.output_std.detach()
        statistics, warnings, losses, action_std, is_finite, own_checksum = read(
            env.unread_statistics(),
            env.unread_warnings(),
            unread_losses,
            Unread(deviations.mean(), first),
            Unread(self._guard.is_finite, first),
            checksum(self.alg),
        )
        collect, learn, evaluate = self._clock.take_seconds()
        return RankReport(
            statistics=statistics,
            losses=losses,
            action_std=action_std,
            warnings=warnings,
            collect_seconds=collect,
            learn_seconds=learn,
            collective_seconds=self.collectives.take_seconds(),
            stop=stop_signal() or 0,
            diverged=not (is_finite and all(map(math.isfinite, losses.values()))),
            checksum=own_checksum,
            evaluation=evaluation,
            eval_seconds=evaluate,
            gpu=read_usage(self.device),
            buffers=env.sim.buffer_use,
        )

    def _collect(self, iteration: int) -> None:
        """Collect one rollout into the storage; end the run if a rank's is not finite."""
        self.heartbeat.enter(Phase.COLLECT, iteration)
        torch.set_num_threads(1)  # The physics engine has its own threads; torch's would compete.
        self._guard.begin()
        with torch.inference_mode():
            self._roll()
        # To ask a GPU now would be to wait for it. Where updates are graphs, this is read with the
        # other numbers of the iteration, after an update that is not kept.
        if not self._captures:
            trouble, flags = find_trouble(self._guard, self.alg, iteration, {})
            # All ranks have to end: one that went on would wait forever for the others.
            if self.collectives.total([trouble is not None])[0]:
                self._raise_diverged(iteration, trouble, flags)

    def _roll(self) -> None:
        """Take the steps of a rollout, and check what they gave."""
        if self.env.group_size > 1:
            # The vine of Schulman et al. (2015, arXiv:1502.05477): the first environment of a group
            # lives on from rollout to rollout, and the others leave it at each rollout's start.
            self.env.take_over(self.env.env_ids * self.env.group_size)
        observations = self.env.get_observations()
        for _ in range(self.agent.num_steps_per_env):
            actions = self.alg.act(observations)
            observations, rewards, dones, extras = self.env.step(actions)
            self.heartbeat.beat()
            self.alg.process_env_step(observations, rewards, dones, extras)
        self._guard.check(self.alg.storage)

    def _update(self, iteration: int) -> Unread[dict[str, float]]:
        """Compute returns and learn from them; return the mean losses."""
        self.heartbeat.enter(Phase.LEARN)
        torch.set_num_threads(self.alg.torch_threads)
        with torch.inference_mode():
            self.alg.compute_returns(self.env.get_observations())
        try:
            return self.alg.start_update()
        except (RuntimeError, ValueError) as error:
            # All ranks have the same parameters, so all of them fail in the same minibatch.
            if all(p.isfinite().all() for p in self.alg.actor.parameters()):
                raise
            text = f"the policy is not finite; the learning rate is {self.alg.learning_rate:.3g}"
            raise DivergedError(f"iteration {iteration}: {text}", slower(self.alg)) from error

    def _evaluate(self, iteration: int) -> EpisodeStatistics | None:
        """Evaluate the policy in this rank's share of the episodes, if an evaluation is due."""
        evaluator = self._evaluator
        is_last = iteration == self.agent.max_iterations
        if not evaluator or (iteration % evaluator.interval and not is_last):
            return None
        self.heartbeat.enter(Phase.EVALUATE)
        torch.set_num_threads(1)
        self.alg.eval_mode()
        statistics = evaluator.evaluate(self.alg.get_policy(), self.heartbeat.beat)
        self.alg.train_mode()
        return statistics

    def _raise_diverged(self, iteration: int, trouble: str | None, flags: str) -> NoReturn:
        """End the run on every rank with the same message, which names the trouble of each."""
        flags = next(filter(None, self.collectives.all_gather_text(flags)), "")
        each = enumerate(self.collectives.all_gather_text(trouble))
        where = "on rank {} " if self.alg.is_distributed else ""
        texts = [where.format(rank) + text for rank, text in each if text is not None]
        texts.append(f"the learning rate is {self.alg.learning_rate:.3g}")
        raise DivergedError(f"iteration {iteration}: {'; '.join(texts)}", flags)

    def _summarize(self, reports: list[RankReport], seconds: float) -> IterationMetrics:
        """Return the metrics of an iteration over all ranks, which took `seconds`."""
        iteration, evaluation, self.is_best = self.current_learning_iteration, {}, False
        if self._evaluator is not None:
            names = self.env.reward_names, self.env.metric_names, self._evaluator.levels
            evaluation, is_finite = rank_statistics.evaluation_means(reports, *names)
            if not is_finite and self.collectives.rank == 0:
                logger.warning(
                    "iteration %s: an evaluation met numbers that are not finite, and counts for "
                    "nothing; training continues",
                    iteration,
                )
            reached = evaluation["return"]
            if reached is not None and (self.best_return is None or reached > self.best_return):
                self.best_return, self.is_best = reached, True
        self.total_steps += sum(report.statistics.steps for report in reports)
        counts = iteration, self.total_steps, seconds, self.alg.learning_rate
        metrics = rank_statistics.summarize(reports, self.window, *counts, evaluation)
        if self.collectives.rank == 0:
            self._std_warning.look(metrics)
        return metrics
