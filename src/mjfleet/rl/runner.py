"""The training loop: rsl_rl's runner with our statistics, files and threads. Runs in a worker."""

import contextlib
import io
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from rsl_rl.runners import OnPolicyRunner

from mjfleet.config import AgentConfig
from mjfleet.env import NAN, Env, EpisodeStatistics
from mjfleet.loggers.iteration_metrics import IterationMetrics
from mjfleet.nan_dump.nan_guard import DumpTo, RolloutWatch
from mjfleet.rl.adapters.rsl_rl_adapter import rsl_rl_config, worthwhile_threads
from mjfleet.rl.checkpoint_files import check_shapes, read_checkpoint
from mjfleet.rl.collectives import Collectives
from mjfleet.rl.cuda_graphs import GraphedRollout
from mjfleet.rl.evaluator import Evaluator
from mjfleet.rl.fast_ppo import FastPPO
from mjfleet.rl.phase import HeartbeatLike, NoHeartbeat, Phase
from mjfleet.rl.ppo import FlatPPO
from mjfleet.rl.rank_statistics import (
    EpisodeWindow,
    RankReport,
    all_episodes,
    means,
    odd_ones_out,
    quotients,
    slowest,
)
from mjfleet.utils.console import print_line

logger = logging.getLogger(__name__)


class DivergedError(RuntimeError):
    """Training met numbers that are not finite and cannot go on."""


class OutOfStepError(RuntimeError):
    """The ranks no longer have the same parameters."""


class Runner(OnPolicyRunner):
    """Collects rollouts and updates the policy; who shows or stores metrics is told by callback.

    Each rank has a runner. They do every iteration together: update by the same gradients, tell
    each other how it went, stop and fail as one.
    """

    env: Env[Any]

    def __init__(
        self,
        env: Env[Any],
        agent: AgentConfig,
        device: str,
        num_threads: int,
        load: Callable[[str], Any],
        collectives: Collectives | None = None,
        heartbeat: HeartbeatLike | None = None,
        dump_to: DumpTo | None = None,
        evaluator: Evaluator | None = None,
    ) -> None:
        """Build networks, algorithm and storage.

        Args:
            env: the environment, on the same device.
            agent: networks, algorithm and numbers.
            device: torch's name of the device.
            num_threads: CPU threads that torch may use for an update.
            load: finds `module:name` in the task folder, see FoundTask.load.
            collectives: connects the ranks; None: this is the only one.
            pulse: told of every step; None: nobody watches.
            dump_to: where worlds that went bad are dumped; None: nowhere.
            evaluator: evaluates the policy now and then; None: nobody does.
        """
        self.heartbeat = heartbeat or NoHeartbeat()
        self.collectives = collectives or Collectives()
        config = rsl_rl_config(agent, load)
        config["algorithm"]["class_name"] = self._algorithm_class(agent)
        with contextlib.redirect_stdout(io.StringIO()):  # rsl_rl prints both networks.
            super().__init__(env, config, log_dir=None, device=device)  # pyright: ignore[reportArgumentType]
        algorithm: Any = self.alg
        algorithm.on_minibatch = self.heartbeat.beat
        self.agent = agent
        self._num_threads = num_threads
        self._compiles = agent.torch_compile_mode is not None or agent.library == "skrl-jax"
        if isinstance(self.alg, FastPPO) and device == "cpu":
            self._num_threads = 1
            self.alg.share_among(min(num_threads, worthwhile_threads(agent, env.num_envs)))
        self.total_steps = 0
        self.window = EpisodeWindow()
        self.is_resumed = False
        """Whether the worlds are where those of an earlier run were."""
        self._evaluator = evaluator
        self.best_return: float | None = None
        """The greatest mean return of an evaluation so far."""
        self.is_best = False
        """Whether it is that of the policy as it is now."""
        self._watch = RolloutWatch(env, agent.num_steps_per_env, dump_to)
        self.rollout: Callable[[], None] = self._roll
        if isinstance(self.alg, FastPPO):
            self.rollout = GraphedRollout(env, self.alg.storage, self._roll)

    def _algorithm_class(self, agent: AgentConfig) -> type[FlatPPO]:
        """PPO of the library that the configuration names."""
        if agent.library == "skrl":
            from mjfleet.rl.adapters.skrl_adapter import TorchPPO

            return TorchPPO
        if agent.library == "skrl-jax":
            from mjfleet.rl.adapters.skrl_jax_adapter import JaxPPO

            return JaxPPO
        unknown = FastPPO.unknown(agent)
        if unknown and self.collectives.rank == 0:
            print_line(f"{unknown}: learning takes rsl_rl's own path, which is slower")
        return FlatPPO if unknown else FastPPO

    def _configure_multi_gpu(self) -> None:
        """Be one of the ranks that are connected already; rsl_rl would make a group of its own."""
        ranks = self.collectives
        self.is_distributed = ranks.world_size > 1
        self.gpu_world_size, self.gpu_global_rank = ranks.world_size, ranks.rank
        self.cfg["multi_gpu"] = (
            {"global_rank": ranks.rank, "world_size": ranks.world_size, "collectives": ranks}
            if self.is_distributed
            else None
        )

    def train(
        self,
        on_iteration: Callable[[IterationMetrics], None],
        stop_signal: Callable[[], int | None],
        save: Callable[[bool], object] | None = None,
    ) -> int | None:
        """Train until `agent.max_iterations` iterations are done or some rank is asked to stop.

        Args:
            on_iteration: called with the metrics of each iteration, the same on every rank.
            stop_signal: asked after each iteration: the signal that this rank has received.
            save: writes the checkpoints that are due, if any, on every rank: called after each
                iteration, after the last one with True.

        Returns:
            The signal that ended training early, the same on every rank; None: it is done.

        Raises:
            DivergedError: on some rank a state, observation, reward or loss is not finite.
            OutOfStepError: the ranks' parameters differ.
        """
        if self.agent.init_at_random_ep_len and not self.is_resumed:
            self.env.start_at_random_times()
        self.alg.train_mode()
        if self.is_distributed:
            self.alg.broadcast_parameters()
        self.collectives.take_seconds()
        before = time.perf_counter()
        first = self.current_learning_iteration + 1
        for iteration in range(first, self.agent.max_iterations + 1):
            with (
                self.heartbeat.excused()
                if iteration == first and self._compiles
                else contextlib.nullcontext()
            ):
                reports = self._iterate(iteration, stop_signal)
            self.current_learning_iteration = iteration
            statistics = all_episodes([report.statistics for report in reports])
            self.total_steps += statistics.steps
            self.window.add(statistics)
            evaluation = self._compare(reports)
            now = time.perf_counter()
            speed = statistics.steps / (now - before)
            on_iteration(self._metrics(reports, statistics, evaluation, speed))
            before = now
            done = iteration == self.agent.max_iterations
            stop = max(report.stop for report in reports)
            if save:
                save(bool(stop or done))
            if stop and not done:
                return stop
        return None

    def load(
        self,
        path: str,
        load_cfg: dict[str, Any] | None = None,
        strict: bool = True,
        map_location: str | None = None,
    ) -> Any:
        """Load what a checkpoint says of learning, wherever it was saved; returns its infos.

        Raises:
            UserError: it is no checkpoint, or one of other networks.
        """
        del map_location  # torch copies from the CPU into what was built here.
        state = read_checkpoint(Path(path))
        built = self.alg.save()
        if load_cfg is not None:
            built = {k: v for k, v in built.items() if load_cfg.get(k.removesuffix("_state_dict"))}
        check_shapes(Path(path), state, built)
        if self.alg.load(state, load_cfg, strict):
            self.current_learning_iteration = state["iter"]
        return state.get("infos")

    def _iterate(self, iteration: int, stop_signal: Callable[[], int | None]) -> list[RankReport]:
        """Collect, learn, and tell each other; returns the reports of all ranks."""
        start = time.perf_counter()
        self.heartbeat.enter(Phase.COLLECT, iteration)
        self._collect()
        trouble = self._watch.trouble(self.alg.storage, iteration)
        # A rank that went on alone would wait for ever for one that gave up.
        if self.collectives.total([trouble is not None])[0]:
            self._diverged(iteration, trouble)
        collected = time.perf_counter()
        self.heartbeat.enter(Phase.LEARN)
        losses = self._update(iteration)
        learned = time.perf_counter()
        evaluation = self._evaluate(iteration)
        evaluated = time.perf_counter()
        unfit = [f"the {n} loss is {v}" for n, v in losses.items() if not math.isfinite(v)]
        own = RankReport(
            statistics=self.env.take_statistics(),
            losses=losses,
            action_std=self._action_std(),
            warnings=self.env.warnings(),
            collect_seconds=collected - start,
            learn_seconds=learned - collected,
            collective_seconds=self.collectives.take_seconds(),
            stop=stop_signal() or 0,
            diverged=bool(unfit),
            checksum=self._checksum() if self.is_distributed else 0,
            evaluation=evaluation,
            eval_seconds=evaluated - learned,
        )
        everyone = self.collectives.all_gather(own.pack())
        reports = [own.unpack(numbers) for numbers in everyone]
        if any(report.diverged for report in reports):
            self._diverged(iteration, unfit[0] if unfit else None)
        if odd := odd_ones_out(reports):
            ranks = ", ".join(f"rank {rank}" for rank in odd)
            raise OutOfStepError(
                f"iteration {iteration}: parameters or normalisers of {ranks} differ from those of "
                f"the other{'' if len(reports) == 2 else 's'}. Something on a rank changes them "
                "besides the common update, or its hardware is faulty."
            )
        return reports

    def _evaluate(self, iteration: int) -> EpisodeStatistics | None:
        """What the policy reaches in this rank's share of an evaluation, where one is due.

        Ranks decide alike: what they tell each other must be of one length.
        """
        evaluator = self._evaluator
        is_last = iteration == self.agent.max_iterations
        if evaluator is None or not (is_last or iteration % evaluator.interval == 0):
            return None
        self.heartbeat.enter(Phase.EVALUATE)
        torch.set_num_threads(1)
        self.alg.eval_mode()
        found = evaluator.evaluate(self.alg.get_policy(), self.heartbeat.beat)
        self.alg.train_mode()
        return found

    def _compare(self, reports: list[RankReport]) -> dict[str, float | None]:
        """The evaluation of all ranks, by the ends of columns' names, beside the best one so far.

        Empty: this run has none.
        """
        self.is_best = False
        if self._evaluator is None:
            return {}
        each = [report.evaluation for report in reports if report.evaluation]
        seconds = sum(report.eval_seconds for report in reports) / len(reports) if each else None
        if not math.isfinite(sum(statistics.returns for statistics in each)):
            if self.collectives.rank == 0:
                logger.warning(
                    "iteration %s: an evaluation met numbers that are not finite, and counts for "
                    "nothing; training goes on",
                    self.current_learning_iteration,
                )
            each = []
        found = means(each, self.env.reward_names)
        reached = found["return"]
        if reached is not None and (self.best_return is None or reached > self.best_return):
            self.best_return, self.is_best = reached, True
        metrics = quotients(each, self.env.metric_names)
        found |= {f"task/{name}": value for name, value in metrics.items()}
        return found | {"seconds": seconds}

    def _metrics(
        self,
        reports: list[RankReport],
        statistics: EpisodeStatistics,
        evaluation: dict[str, float | None],
        steps_per_second: float,
    ) -> IterationMetrics:
        """An iteration over all ranks: sums of what can be counted, means of the rest."""
        newest = self.window.means(self.env.reward_names)
        rank, wait, collective = slowest(reports)
        totals = {
            kind: sum(report.warnings[kind] for report in reports) for kind in reports[0].warnings
        }

        def mean(values: list[float]) -> float:
            return sum(values) / len(reports)

        return IterationMetrics(
            iteration=self.current_learning_iteration,
            world_size=len(reports),
            total_steps=self.total_steps,
            global_steps_per_second=steps_per_second,
            mean_return=newest["return"],
            mean_episode_length=newest["length"],
            terms={name: newest[f"reward/{name}"] for name in self.env.reward_names},
            mean_reward=statistics.rewards / statistics.steps,
            task=quotients([statistics], self.env.metric_names),
            losses={
                name: mean([report.losses[name] for report in reports])
                for name in reports[0].losses
            },
            learning_rate=self.alg.learning_rate,
            action_std=mean([report.action_std for report in reports]),
            collect_seconds=mean([report.collect_seconds for report in reports]),
            learn_seconds=mean([report.learn_seconds for report in reports]),
            slowest_rank=rank,
            wait_seconds=wait,
            collective_seconds=collective,
            nan_resets=totals.pop(NAN),
            warnings={kind: worlds for kind, worlds in totals.items() if worlds},
            evaluation=evaluation,
        )

    def _collect(self) -> None:
        """One rollout into the storage."""
        # The physics engine has threads of its own; torch's would fight them for the cores.
        torch.set_num_threads(1)
        self._watch.begin()
        with torch.inference_mode():
            self.rollout()

    def _roll(self) -> None:
        """The steps of a rollout."""
        observations = self.env.get_observations()
        for _ in range(self.agent.num_steps_per_env):
            actions = self.alg.act(observations)
            observations, rewards, dones, extras = self.env.step(actions)
            self.heartbeat.beat()
            self.alg.process_env_step(observations, rewards, dones, extras)

    def _update(self, iteration: int) -> dict[str, float]:
        """Returns of the rollout, and the update by them; returns this rank's mean losses."""
        torch.set_num_threads(self._num_threads)
        with torch.inference_mode():
            self.alg.compute_returns(self.env.get_observations())
        try:
            return self.alg.update()
        except (RuntimeError, ValueError) as error:
            # The ranks have the same parameters: where one fails so, all do, in the same minibatch.
            if all(p.isfinite().all() for p in self.alg.get_policy().parameters()):
                raise
            raise DivergedError(f"iteration {iteration}: the policy is not finite") from error

    def _diverged(self, iteration: int, trouble: str | None) -> NoReturn:
        """End the run on every rank alike, by what each of them has found."""
        found = self.collectives.all_gather_text(trouble)
        texts = [
            f"on rank {rank} {text}" if self.is_distributed else text
            for rank, text in enumerate(found)
            if text is not None
        ]
        raise DivergedError(f"iteration {iteration}: {'; '.join(texts)}")

    def _action_std(self) -> float:
        """Mean standard deviation of the actions of the rollout; waits for the device."""
        parameters: Any = self.alg.storage.distribution_params
        return parameters[1].mean().item()

    @torch.inference_mode()
    def _checksum(self) -> int:
        """Of every bit of parameters and normalisers, below 2^52; waits for the device."""
        modules = [self.alg.actor, self.alg.critic, *([self.alg.rnd] if self.alg.rnd else [])]
        tensors = [tensor for module in modules for tensor in module.state_dict().values()]
        total = torch.zeros((), dtype=torch.int64, device=self.device)
        for tensor in tensors:
            total = total * 31 + tensor.reshape(-1).view(torch.int32).sum(dtype=torch.int64)
        return int(total) % 2**52
