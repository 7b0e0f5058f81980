"""All checks of `mjfleet check-task`, in the order in which one mistake explains others."""

import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from mjfleet.config import from_dict
from mjfleet.env.episode_statistics import early_end, means
from mjfleet.env.factory import build_env, on_device
from mjfleet.env.random_numbers import seed_everything
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask
from mjfleet.tools.check_task import comparisons, signals, state_checks
from mjfleet.tools.check_task.subject import Finding, Subject, place, roll
from mjfleet.tools.check_task.watch import CopyWatch, Watch
from mjfleet.utils.console import in_a_line, print_line

WORLDS = 32


def examine(found: FoundTask, device: str) -> dict[str, str]:
    """Return lines with the kind of each: a `mistake`, a `warning` of what may be one, or a `note`
    of what the task accepts. Print which engine runs."""
    if unfit := list(state_checks.unfit_methods(found.load(found.task.env_class))):
        return dict.fromkeys(unfit, "mistake")
    checks = {"native on cpu": on_native(found), f"warp on {device}": on_warp(found, device)}
    lines, is_over = dict[str, str](), False
    for where, findings in checks.items():
        more = "; compiling a new model's kernels takes about a minute" * ("warp" in where)
        print_line(f"{where}: {signals.STEPS} steps of {WORLDS} worlds with random actions{more}")
        try:
            for text, is_sure, is_last in findings:
                accepted = found.load(found.task.env_class).accepted_findings.items()
                reasons = [f"(accepted: {why})" for part, why in accepted if part in text]
                kind = "note" if reasons else "mistake" if is_sure else "warning"
                lines[" ".join((text, *reasons))] = kind
                is_over |= is_last and kind == "mistake"
        except Exception as error:
            lines[describe(error, found)] = "mistake"
            return lines
        if is_over:
            return lines  # Both engines would show it.
    for part in found.load(found.task.env_class).accepted_findings:
        if not any(part in line for line in lines):
            lines[f"accepted_findings: {part!r} is in no finding; remove it"] = "warning"
    return lines


def describe(error: Exception, found: FoundTask) -> str:
    """Return an exception's message with the task's line that led to it; raise it if none did."""
    if isinstance(error, UserError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(found.folder)]
    if not own:
        raise error
    text = in_a_line(error), *getattr(error, "__notes__", ())
    return f"{place(own[-1])}: {type(error).__name__}: {' '.join(text)}"


def on_native(found: FoundTask) -> Iterator[Finding]:
    """Make all checks that need MuJoCo's own engine alone."""
    with on_device("native", "cpu"), torch.inference_mode():  # As in training.
        seed_everything(found.defaults().agent.seed)
        before = state_checks.outside()
        subject = build(found)
        at_first = state_checks.outlasting(before, "setup() or make_model()")
        yield from _checks(subject, at_first, partial(build, found, group_size=comparisons.TWINS))


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


def _checks(
    subject: Subject, at_first: dict[str, Finding], build: comparisons.Build
) -> Iterator[Finding]:
    """Make the checks; `at_first` has what building the environment has changed outside of it."""
    env, check, packages = subject.env, subject.check, subject.packages()
    before = state_checks.outside(packages)
    with Watch(subject) as watch, CopyWatch(watch):
        run = roll(env, subject.actions(signals.STEPS))
    outlasting = state_checks.outlasting(before, "a step", packages)
    undeclared = list(state_checks.undeclared(subject))
    starts = check(state_checks.first_states)
    written = [*state_checks.written_model(subject), *state_checks.misspelt_methods(subject)]
    warnings = list(signals.engine_warnings(env))
    was_reset = any(kind.startswith("BAD") for kind in env.sim.warnings())
    bad_numbers = signals.not_finite(run, "steps with random actions")
    yield from (*(at_first | outlasting).values(), *undeclared, *map(Finding, watch.texts))
    yield from (*check(state_checks.who_writes), *written, *(starts or warnings), *bad_numbers)
    if bad_numbers or was_reset:
        return
    ends = early_end(means(env.take_statistics())["length"], env.max_episode_length)
    yield from (*map(Finding, ends), *check(state_checks.reset_leaks))
    idle = check(signals.dead_actions) if not (outlasting or ends) else []
    yield from (*idle, *signals.far_controls(env, run))
    if ends or any(finding.is_last for finding in idle):
        return  # What follows from that would only distract.
    states = subject.from_random_states(signals.ROUNDS)
    yield from check(signals.constant_signals, run, states)
    seen = {name: values for name, values in states.items() if name.startswith(signals.SIGNALS)}
    yield from signals.not_finite(seen, "random states, which a policy may reach", is_sure=False)
    yield from check(state_checks.variations)
    yield from check(state_checks.idle_variations, subject.actions(signals.STEPS))
    if outlasting or undeclared:
        return  # Futures differ for that reason.
    if unequal := check(comparisons.seeds, build):
        yield from unequal
        return
    yield from (*check(state_checks.stale_reads), *check(comparisons.leaks_between))
    yield from comparisons.stale_constants(build().env.sim)
