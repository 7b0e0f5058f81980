"""Decides whether a run that is resumed goes on in place or becomes a run of its own.

It goes on in place if nothing differs that decides what is learned. Otherwise a new run begins from
its checkpoint, and the run stays as it is. Runs in the launcher.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mjfleet.config import TrainConfig
from mjfleet.config.field_kinds import INITIAL, NAMES, PLACEMENT, decides_learning
from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import differences
from mjfleet.runs.resume_choice import Parent, Resume, Wanted, choose_checkpoint
from mjfleet.runs.run_json import read_record
from mjfleet.runs.run_lookup import name_of

NAMED = 5  # How many differing values a line names.
Values = Mapping[str, tuple[Any, Any]]


def resume_or_fork(
    wanted: Wanted, config: TrainConfig, recorded: TrainConfig, take_lock: bool
) -> tuple[Resume, TrainConfig]:
    """Return where training continues, and the configuration that it uses.

    Args:
        wanted: what `--resume` names.
        config: what is to be trained now.
        recorded: the configuration of the run that `wanted` names.
        take_lock: whether to lock a run that goes on in place.

    Raises:
        UserError: the run is being trained, its checkpoints are damaged, or a value differs that
            cannot be changed any more.
    """
    if wanted.run_dir is None:
        resume = choose_checkpoint(wanted)
        notes = (f"a new run begins with {wanted.path}",)
        return replace(resume, parent=_parent(resume, None, {}), notes=notes), config
    if config.env.num_envs == "auto" and recorded.env.num_envs != "auto":
        config = config.with_num_envs(recorded.env.num_envs)  # What has been found for the run.
    different = differences(config, recorded)
    if config.total_envs is not None and "total_envs" not in different:
        different.pop("env.num_envs", None)  # It follows from the number of workers.
    reasons = {n: both for n, both in different.items() if decides_learning(n) or n in NAMES}
    if not reasons:
        others = {n: both for n, both in different.items() if n not in PLACEMENT}
        why = "nothing differs that decides what is learned"
        note = f"goes on in place: {why}{f' ({_listed(others)})' if others else ''}"
        if config.run_dir:
            raise UserError(
                f"--run-dir {config.run_dir} is for a new run, and {wanted.run_dir} goes on in "
                "place: leave it out."
            )
        resume = choose_checkpoint(wanted, take_lock)
        config = replace(config, log_root=recorded.log_root)  # It is where it is.
        return replace(resume, notes=(note, *resume.notes)), config
    resume = choose_checkpoint(wanted)
    if resume.checkpoint:
        for name, (_, theirs) in reasons.items():
            if name in INITIAL:
                raise UserError(
                    f"--{_flag(name)} is for the beginning of a policy, and {resume.checkpoint} "
                    f"has begun with {theirs}: leave it out, or train without --resume."
                )
    note = f"a run of its own, since {_listed(reasons)}; {wanted.run_dir} stays as it is"
    parent = _parent(resume, wanted.run_dir.resolve(), different)
    resume = replace(resume, run_dir=None, parent=parent, notes=(note, *resume.notes))
    return resume, config


def _parent(resume: Resume, run_dir: Path | None, different: Values) -> Parent:
    """Return what run.json records of the run, or of the checkpoint, that a new run begins from."""
    return Parent(
        run=name_of(run_dir) if run_dir else None,
        checkpoint=str(resume.checkpoint.resolve()) if resume.checkpoint else None,
        iteration=resume.iteration,
        networks_only=resume.networks_only,
        changed={n: {"value": ours, "parent": theirs} for n, (ours, theirs) in different.items()},
        wandb_id=read_record(run_dir).get("wandb_id") if run_dir else None,
    )


def _listed(values: Values) -> str:
    """Return differing values in words: `--agent.seed is 9, was 1`."""
    shown = {n: [value if value != "" else "empty" for value in both] for n, both in values.items()}
    words = [f"--{_flag(n)} is {ours}, was {theirs}" for n, (ours, theirs) in shown.items()]
    more = [f"{len(words) - NAMED} more differ"] if len(words) > NAMED else []
    return "; ".join(words[:NAMED] + more)


def _flag(name: str) -> str:
    return name.replace("_", "-")
