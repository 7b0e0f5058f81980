"""All checks of `mjfleet check-task`, in the order in which one mistake explains others."""

from collections.abc import Iterator
from typing import Any, Literal

import torch

from mjfleet.config import TrainConfig
from mjfleet.env.environment import Env, EnvShard
from mjfleet.env.factory import build_env, on_device
from mjfleet.env.random_numbers import seed_everything
from mjfleet.registry import FoundTask
from mjfleet.tools.check_task import command_checks, comparisons, signals, state_checks
from mjfleet.tools.check_task.finding import Finding
from mjfleet.tools.check_task.state_checks import ClassState, GlobalGenerators
from mjfleet.tools.check_task.subject import Subject


class Examination:
    """Examines a task on one engine after the other."""

    def __init__(self, found: FoundTask, config: TrainConfig) -> None:
        """Examine a task with a configuration."""
        self._found, self._config, self._agent = found, config, config.agent

    def on_native(self) -> Iterator[Finding]:
        """Make all checks that need MuJoCo's own engine alone."""
        with on_device("native", "cpu"), torch.inference_mode():  # As in training.
            seed_everything(self._agent.seed)
            generators = GlobalGenerators("cpu")
            env = self._build_on("native", "cpu")
            yield from generators.findings("setup() or make_model()")
            subject = Subject(env, self._agent)
            yield from subject.check(comparisons.symmetry, self._found.load)
            yield from self._random_steps(subject)

    def against_warp(self, device: str) -> Iterator[Finding]:
        """Step both engines side by side, MuJoCo-Warp on a device."""
        with on_device("warp", device), torch.inference_mode():
            seed_everything(self._agent.seed)
            one = Subject(self._build_on("native", "cpu"), self._agent)
            other = Subject(self._build_on("warp", device), self._agent)
            yield from comparisons.disagreements(one, other)

    def _build_on(self, engine: Literal["native", "warp"], device: str) -> Env[Any]:
        return build_env(self._found, self._config, engine, device, num_threads=1)

    def _build(self, rank: int = 0, shard: EnvShard | None = None) -> Env[Any]:
        seed_everything(self._agent.seed)
        arguments = self._found, self._config, "native", "cpu"
        return build_env(*arguments, num_threads=1, rank=rank, shard=shard)

    def _random_steps(self, subject: Subject) -> Iterator[Finding]:
        """Take the steps, and yield what they tell."""
        env, check = subject.env, subject.check
        generators, classes = GlobalGenerators("cpu"), ClassState(env, str(self._found.folder))
        run = signals.random_steps(subject)
        draws = list(generators.findings("a step"))
        changed = check(comparisons.changed_model)
        starts = check(state_checks.first_states)
        warnings = list(signals.engine_warnings(env))
        bad_numbers = signals.not_finite(run)
        undeclared = [*classes.findings(), *state_checks.undeclared(subject)]
        yield from (*draws, *undeclared, *changed, *(starts or warnings), *bad_numbers)
        if bad_numbers or any("reports BAD" in each.text for each in warnings):
            return
        ends = [*signals.early_ends(subject, run), *check(signals.ends_by_length)]
        idle = list(signals.saturated_actuators(subject, run))
        if not draws:
            idle += check(signals.dead_actions)
        leaks = check(state_checks.reset_leaks)
        yield from (*ends, *idle, *leaks)
        if ends or any("the actions change nothing" in finding.text for finding in idle):
            return  # What follows from that would only distract.
        states = subject.from_random_states(signals.ROUNDS)
        constant = check(signals.constant_signals, run, states)
        yield from constant
        yield from signals.rare_numbers(states)
        if not constant:
            yield from signals.unscaled_observations(subject, run)
        yield from signals.large_rewards(run)
        yield from check(state_checks.variations)
        if not draws and not undeclared:
            yield from self._futures(subject, keeps_model=not changed)

    def _futures(self, subject: Subject, *, keeps_model: bool) -> Iterator[Finding]:
        """Compare futures that differ in one thing."""
        check = subject.check
        if unequal := check(comparisons.seeds, self._build):
            yield from unequal
            return
        yield from check(state_checks.stale_reads)
        yield from check(state_checks.who_writes)
        yield from check(command_checks.declared_commands)
        leaks = check(comparisons.leaks_between)
        yield from leaks or check(comparisons.neighbours, self._build)
        if keeps_model:
            yield from comparisons.stale_constants(self._build)
