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
    command_checks,
    perturbations,
    random_states,
    random_steps,
    reset_checks,
    source_checks,
    start_checks,
)
from mjfleet.tools.check_task.build_checks import neighbours, seeds, stale_constants
from mjfleet.tools.check_task.call_trace import CallTrace, method_place
from mjfleet.tools.check_task.constant_excuses import excuses
from mjfleet.tools.check_task.engine_checks import disagreements
from mjfleet.tools.check_task.finding import Finding
from mjfleet.tools.check_task.line_watch import LineWatch, host_generators
from mjfleet.tools.check_task.python_state import PythonState, random_draws

Engine = Literal["native", "warp"]
STEPS_BEFORE = 5  # In which a task may make what it keeps from then on.


class Examination:
    """Examines a task on one engine after the other."""

    def __init__(self, found: FoundTask, config: TrainConfig) -> None:
        self._found, self._config, self._agent = found, config, config.agent
        self._setup = LineWatch(str(found.folder), host_generators())

    def on_native(self) -> Iterator[Finding]:
        """Make all checks that need MuJoCo's own engine alone."""
        with on_device("native", "cpu"), torch.inference_mode():  # As in training.
            trace = CallTrace(str(self._found.folder))
            yield from self._random_steps(self._build_traced(trace), trace)

    def against_warp(self, device: str) -> Iterator[Finding]:
        """Step both engines side by side, MuJoCo-Warp on a device."""
        with on_device("warp", device), torch.inference_mode():
            traces = [CallTrace(str(self._found.folder)) for _ in range(2)]
            one, other = (
                self._build_traced(traces[0]), self._build_traced(traces[1], "warp", device)
            )  # fmt: skip
            yield from disagreements(one, other, self._agent, *traces)

    def _build_traced(
        self, trace: CallTrace, engine: Engine = "native", device: str = "cpu"
    ) -> Env[Any]:
        seed_everything(self._agent.seed)
        with trace, self._setup:
            env = build_env(self._found, self._config, engine, device, num_threads=1)
        if engine == "native" or device != "cpu":
            trace.follow(env)
        return env

    def _build(self, rank: int = 0, shard: EnvShard | None = None) -> Env[Any]:
        seed_everything(self._agent.seed)
        arguments = self._found, self._config, "native", "cpu"
        return build_env(*arguments, num_threads=1, rank=rank, shard=shard)

    def _random_steps(self, env: Env[Any], trace: CallTrace) -> Iterator[Finding]:
        """Take the steps, and yield what they tell."""
        agent = self._agent
        for action in random_steps.random_actions(env, agent, STEPS_BEFORE, seed=11):
            env.step(action)
        random_steps.record(env)
        python = PythonState(env, trace)
        with python.watch:
            run = random_steps.take_random_steps(env, trace, agent)
        yield from trace.other_dtypes()
        yield from trace.waits.values()
        yield from trace.elsewhere.values()
        yield from trace.lost_writes.findings()
        yield from source_checks.quaternion_order(self._found.folder)
        changed = list(start_checks.changed_model(env))
        yield from changed
        starts = list(start_checks.first_states(env, trace))
        starts += start_checks.overlaps(env, trace)
        yield from starts
        warnings = list(random_steps.engine_warnings(env))
        if not starts:
            yield from warnings
        not_finite = list(random_steps.find_not_finite(run))
        yield from not_finite
        if not_finite or any("reports BAD" in each.text for each in warnings):
            return
        for place in trace.hidden:
            text = "nan_to_num() hides numbers that are not finite; mend where they come from"
            yield Finding(text, place)
        action = random_steps.random_actions(env, agent, 1, seed=12)[0]
        draws = list(random_draws(env, trace, self._setup.changes | python.watch.changes))
        yield from (*draws, *python.findings(lambda: env.step(action)))
        env.recorder = None
        early = list(action_checks.early_ends(env, run.failures, trace))
        early += action_checks.ends_by_length(env, trace)
        idle = list(random_steps.saturated_actuators(env, run, trace))
        if not draws and not idle:
            idle = list(action_checks.dead_actions(env, agent, trace))
        yield from (*early, *idle)
        leaks = list(reset_checks.reset_leaks(env, trace))
        yield from leaks
        if early or any("the actions change nothing" in finding.text for finding in idle):
            return  # What follows from that would only distract.
        states = random_states.step_from_random_states(env, agent, trace)
        constant = list(self._constant(env, run, trace, states))
        yield from constant
        yield from random_states.rare_numbers(states)
        if not constant:
            yield from random_steps.unscaled_observations(run.signals, agent, trace)
        yield from random_steps.large_rewards(run.signals, trace)
        if not draws:
            yield from self._probes(
                env, trace, is_seen=not constant and not leaks, is_changed=bool(changed)
            )

    def _probes(
        self, env: Env[Any], trace: CallTrace, *, is_seen: bool, is_changed: bool
    ) -> Iterator[Finding]:
        """Compare futures that differ in one thing."""
        agent = self._agent
        if unequal := list(seeds(self._build, agent, trace)):
            yield from unequal
            return
        yield from reset_checks.forgotten_parts(env)
        stale = list(reset_checks.stale_reads(env, trace))
        yield from stale
        late = list(perturbations.late_signals(env, agent, trace))
        yield from late or reset_checks.carried_over(env, agent, trace)
        commands = list(command_checks.declared_commands(env, agent, trace))
        yield from commands
        if is_seen and not stale and not commands:
            yield from command_checks.drawn_tensors(env, agent, trace)
        yield from command_checks.what_is_watched(env, trace)
        leaks = list(perturbations.leaks_between_worlds(env, agent, trace))
        yield from leaks
        yield from neighbours(self._build, env.num_envs, agent, trace, is_told=bool(leaks))
        if not is_changed:
            yield from stale_constants(self._build(), env, trace)

    def _constant(
        self,
        env: Env[Any],
        run: random_steps.RandomSteps,
        trace: CallTrace,
        states: random_states.RandomStates,
    ) -> Iterator[Finding]:
        """Find what never changes, neither with random actions nor in random states."""
        constant = list(random_steps.constant_signals(env, run.signals, trace))
        never_fails = type(env).terminated is not Env.terminated and not run.failures.any()
        excused = {name: excuses(env, trace, name) for name, _, _ in constant}
        for name, columns, finding in constant:
            still = random_steps.constant_columns(
                torch.cat((run.signals[name][1:], states.signals[name]))
            )
            if (still & columns & ~excused[name]).any():
                yield finding
        if never_fails and not states.failures.any():
            yield Finding(
                "terminated() is never true, neither with random actions nor in random states; "
                "look at its condition, or leave it out",
                trace.place_of("terminated") or method_place(env, "terminated"),
                is_sure=False,
            )
