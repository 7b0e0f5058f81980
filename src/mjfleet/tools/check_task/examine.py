"""All checks of `mjfleet check-task`, in the order in which one mistake explains others."""

from collections.abc import Iterator
from typing import Any, Literal

import torch

from mjfleet.config import TrainConfig
from mjfleet.env.environment import Env
from mjfleet.env.factory import build_env, on_device
from mjfleet.env.random_numbers import seed_everything
from mjfleet.registry import FoundTask
from mjfleet.tools.check_task import comparisons, signals, state_checks
from mjfleet.tools.check_task.state_checks import GlobalGenerators
from mjfleet.tools.check_task.subject import Finding, Subject, roll


class Examination:
    """Examines a task on one engine after the other."""

    def __init__(self, found: FoundTask, config: TrainConfig) -> None:
        self._found, self._config = found, config

    def on_native(self) -> Iterator[Finding]:
        """Make all checks that need MuJoCo's own engine alone."""
        with on_device("native", "cpu"), torch.inference_mode():  # As in training.
            seed_everything(self._config.agent.seed)
            generators = GlobalGenerators()
            subject = self._subject("native", "cpu")
            yield from generators.findings("setup() or make_model()")
            yield from self._random_steps(subject)

    def against_warp(self, device: str) -> Iterator[Finding]:
        """Step both engines side by side, MuJoCo-Warp on a device."""
        with on_device("warp", device), torch.inference_mode():
            seed_everything(self._config.agent.seed)
            one, other = self._subject("native", "cpu"), self._subject("warp", device)
            yield from comparisons.disagreements(one, other)

    def _subject(self, engine: Literal["native", "warp"], device: str) -> Subject:
        env = build_env(self._found, self._config, engine, device, num_threads=1)
        return Subject(env, self._config.agent)

    def _build(self, rank: int) -> Env[Any]:
        seed_everything(self._config.agent.seed)
        where = self._found, self._config, "native", "cpu", 1
        return build_env(*where, rank=rank, group_size=comparisons.TWINS)

    def _random_steps(self, subject: Subject) -> Iterator[Finding]:
        env, check = subject.env, subject.check
        generators = GlobalGenerators()
        run = roll(env, subject.actions(signals.STEPS))
        draws = list(generators.findings("a step"))
        undeclared = list(state_checks.undeclared(subject))
        starts = check(state_checks.first_states)
        written = list(state_checks.written_model(subject))
        written += state_checks.misspelt_methods(subject)
        warnings, bad_numbers = list(signals.engine_warnings(env)), signals.not_finite(run)
        yield from (*draws, *undeclared, *written, *(starts or warnings), *bad_numbers)
        if bad_numbers or any("reports BAD" in each.text for each in warnings):
            return
        ends = [*signals.early_ends(run), *check(signals.ends_by_length)]
        idle = check(signals.dead_actions) if not draws else []
        yield from (*ends, *idle, *check(state_checks.reset_leaks))
        if ends or any("the actions change nothing" in finding.text for finding in idle):
            return  # What follows from that would only distract.
        states = subject.from_random_states(signals.ROUNDS)
        constant = check(signals.constant_signals, run, states)
        yield from (*constant, *signals.rare_numbers(states), *check(state_checks.variations))
        yield from check(state_checks.idle_variations, subject.actions(signals.STEPS))
        if draws or undeclared:
            return  # Futures differ for that reason.
        if unequal := check(comparisons.seeds, self._build):
            yield from unequal
            return
        for one in (state_checks.stale_reads, state_checks.who_writes, comparisons.leaks_between):
            yield from check(one)
        yield from comparisons.stale_constants(self._build)
