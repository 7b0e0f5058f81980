"""All checks of `mjfleet check-task`, in the order in which one mistake explains others."""

from collections.abc import Iterator
from typing import Any, Literal

import torch

from mjfleet.config import TrainConfig
from mjfleet.env.environment import Env, EnvShard
from mjfleet.env.factory import build_env, on_device
from mjfleet.env.random_numbers import seed_everything
from mjfleet.registry import FoundTask
from mjfleet.tools.check_task import (
    action_checks,
    build_checks,
    command_checks,
    random_states,
    random_steps,
    reset_checks,
    start_checks,
)
from mjfleet.tools.check_task.call_trace import CallTrace
from mjfleet.tools.check_task.constant_signals import constant_signals
from mjfleet.tools.check_task.finding import Finding
from mjfleet.tools.check_task.line_watch import LineWatch, host_generators
from mjfleet.tools.check_task.python_state import PythonState, random_draws
from mjfleet.tools.check_task.subject import Subject

STEPS_BEFORE = 5  # In which a task may make what it keeps from then on.


class Examination:
    """Examines a task on one engine after the other."""

    def __init__(self, found: FoundTask, config: TrainConfig) -> None:
        self._found, self._config, self._agent = found, config, config.agent
        self._setup = LineWatch(str(found.folder), host_generators())

    def on_native(self) -> Iterator[Finding]:
        """Make all checks that need MuJoCo's own engine alone."""
        with on_device("native", "cpu"), torch.inference_mode():  # As in training.
            subject = self._subject("native", "cpu")
            yield from subject.check(build_checks.symmetry, self._found.load)
            yield from self._random_steps(subject)

    def against_warp(self, device: str) -> Iterator[Finding]:
        """Step both engines side by side, MuJoCo-Warp on a device."""
        with on_device("warp", device), torch.inference_mode():
            one, other = self._subject("native", "cpu"), self._subject("warp", device)
            yield from build_checks.disagreements(one, other)

    def _subject(self, engine: Literal["native", "warp"], device: str) -> Subject:
        """Build an environment and trace its calls."""
        trace = CallTrace(str(self._found.folder))
        seed_everything(self._agent.seed)
        with trace, self._setup:
            env = build_env(self._found, self._config, engine, device, num_threads=1)
        if engine == "native" or device != "cpu":
            trace.follow(env)
        return Subject(env, self._agent, trace)

    def _build(self, rank: int = 0, shard: EnvShard | None = None) -> Env[Any]:
        seed_everything(self._agent.seed)
        arguments = self._found, self._config, "native", "cpu"
        return build_env(*arguments, num_threads=1, rank=rank, shard=shard)

    def _random_steps(self, subject: Subject) -> Iterator[Finding]:
        """Take the steps, and yield what they tell."""
        env, trace, check = subject.env, subject.trace, subject.check
        for action in subject.actions(STEPS_BEFORE, seed=11):
            env.step(action)
        python = PythonState(subject)
        with python.watch:
            run, births = random_steps.take_random_steps(subject)
        yield from trace.findings()
        yield from start_checks.quaternion_order(self._found.folder)
        changed = check(start_checks.changed_model)
        starts = check(start_checks.first_states)
        warnings = list(random_steps.engine_warnings(env))
        not_finite = random_steps.not_finite(run, births)
        yield from (*changed, *(starts or warnings), *not_finite)
        if not_finite or any("reports BAD" in each.text for each in warnings):
            return
        yield from trace.hidden.values()
        draws = check(random_draws, self._setup.changes | python.watch.changes)
        yield from (*draws, *check(python.findings))
        early = check(action_checks.early_ends, run)
        early += check(action_checks.ends_by_length)
        idle = check(random_steps.saturated_actuators, run)
        if not draws and not idle:
            idle = check(action_checks.dead_actions)
        leaks = check(reset_checks.reset_leaks)
        yield from (*early, *idle, *leaks)
        if early or any("the actions change nothing" in finding.text for finding in idle):
            return  # What follows from that would only distract.
        states, births = random_states.step_from_random_states(subject)
        constant = check(constant_signals, run, states)
        yield from constant
        yield from random_states.rare_numbers(states, births)
        if not constant:
            yield from random_steps.unscaled_observations(subject, run)
        yield from random_steps.large_rewards(subject, run)
        if not draws:
            is_clean = not constant and not leaks
            yield from self._futures(subject, sees_all=is_clean, keeps_model=not changed)

    def _futures(self, subject: Subject, *, sees_all: bool, keeps_model: bool) -> Iterator[Finding]:
        """Compare futures that differ in one thing."""
        check = subject.check
        if unequal := check(build_checks.seeds, self._build):
            yield from unequal
            return
        yield from check(reset_checks.forgotten_parts)
        stale = check(reset_checks.stale_reads)
        late = check(random_states.late_signals)
        yield from (*stale, *(late or check(reset_checks.carried_over)))
        commands = check(command_checks.declared_commands)
        yield from commands
        if sees_all and not stale and not commands:
            yield from check(command_checks.drawn_tensors)
        yield from check(command_checks.what_is_watched)
        leaks = check(random_states.leaks_between_worlds)
        yield from leaks
        yield from check(build_checks.neighbours, self._build, bool(leaks))
        if keeps_model:
            yield from check(build_checks.stale_constants, self._build)
