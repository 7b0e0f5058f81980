"""All checks of `mjfleet check-task`, in the order in which one mistake explains others."""

import os
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from mjfleet.config import from_dict
from mjfleet.env.factory import build_env, on_device
from mjfleet.env.random_numbers import seed_everything
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask
from mjfleet.tools.check_task import comparisons, signals, state_checks
from mjfleet.tools.check_task.subject import Finding, Subject, roll
from mjfleet.utils.console import in_a_line, print_line

WORLDS = 32


def examine(found: FoundTask, device: str) -> tuple[list[str], list[str]]:
    """Return lines about mistakes and about what may be one; print which engine runs."""
    checks = {"native on cpu": on_native(found), f"warp on {device}": on_warp(found, device)}
    texts: tuple[list[str], list[str]] = ([], [])
    for where, findings in checks.items():
        compiles = "; compiling a new model's kernels takes about a minute" * ("warp" in where)
        print_line(
            f"{where}: {signals.STEPS} steps of {WORLDS} worlds with random actions{compiles}"
        )
        try:
            for finding in findings:
                if finding.text not in texts[not finding.is_sure]:
                    texts[not finding.is_sure].append(finding.text)
        except Exception as error:
            texts[0].append(describe(error, found))
            break
        if any("not finite" in text for text in texts[0]):
            break  # Both engines would show it.
    return texts


def describe(error: Exception, found: FoundTask) -> str:
    """Return an exception's message with the last line of the task's code that led to it.

    An exception that the task's code did not lead to is raised.
    """
    if isinstance(error, UserError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(found.folder)]
    if not own:
        raise error
    place = f"{os.path.relpath(own[-1].filename)}:{own[-1].lineno}, in {own[-1].name}()"
    return f"{place}: `{own[-1].line}`: {type(error).__name__}: {in_a_line(error)}"


def on_native(found: FoundTask) -> Iterator[Finding]:
    """Make all checks that need MuJoCo's own engine alone."""
    with on_device("native", "cpu"), torch.inference_mode():  # As in training.
        seed_everything(found.defaults().agent.seed)
        numbers = state_checks.global_generators()
        subject = build(found)
        yield from state_checks.global_draws(numbers, "setup() or make_model()")
        yield from _checks(subject, partial(build, found, group_size=comparisons.TWINS))


def on_warp(found: FoundTask, device: str) -> Iterator[Finding]:
    """Step both engines side by side, MuJoCo-Warp on a device."""
    with on_device("warp", device), torch.inference_mode():
        yield from comparisons.disagreements(build(found), build(found, "warp", device))


def build(
    found: FoundTask,
    engine: Literal["native", "warp"] = "native",
    device: str = "cpu",
    rank: int = 0,
    group_size: int = 1,
) -> Subject:
    """Build a task's environment as a worker does, with the seed of its default numbers."""
    config = from_dict(found.defaults(), {"env": {"num_envs": WORLDS}})
    seed_everything(config.agent.seed)
    env = build_env(found, config, engine, device, 1, rank=rank, group_size=group_size)
    return Subject(env, config.agent)


def _checks(subject: Subject, build: comparisons.Build) -> Iterator[Finding]:
    env, check, numbers = subject.env, subject.check, state_checks.global_generators()
    run = roll(env, subject.actions(signals.STEPS))
    draws = list(state_checks.global_draws(numbers, "a step"))
    undeclared = list(state_checks.undeclared(subject))
    starts = check(state_checks.first_states)
    written = [*state_checks.written_model(subject), *state_checks.misspelt_methods(subject)]
    warnings = list(signals.engine_warnings(env))
    bad_numbers = signals.not_finite(run, "steps with random actions")
    yield from (*draws, *undeclared, *written, *(starts or warnings), *bad_numbers)
    if bad_numbers or any("reports BAD" in each.text for each in warnings):
        return
    ends = [*signals.early_ends(run), *check(signals.ends_by_length)]
    idle = check(signals.dead_actions) if not draws else []
    yield from (*ends, *idle, *check(state_checks.reset_leaks))
    if ends or any("the actions change nothing" in finding.text for finding in idle):
        return  # What follows from that would only distract.
    states = subject.from_random_states(signals.ROUNDS)
    yield from check(signals.constant_signals, run, states)
    seen = {name: values for name, values in states.items() if name.startswith(signals.SIGNALS)}
    yield from signals.not_finite(seen, "random states, which a policy may reach", is_sure=False)
    yield from check(state_checks.variations)
    yield from check(state_checks.idle_variations, subject.actions(signals.STEPS))
    if draws or undeclared:
        return  # Futures differ for that reason.
    if unequal := check(comparisons.seeds, build):
        yield from unequal
        return
    for one in (state_checks.stale_reads, state_checks.who_writes, comparisons.leaks_between):
        yield from check(one)
    yield from comparisons.stale_constants(build().env.sim)
