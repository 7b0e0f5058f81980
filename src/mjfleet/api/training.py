"""`mjfleet.train`: a training run in processes of its own, from a script or a notebook."""

from dataclasses import replace
from typing import Any

from mjfleet.api.choose_task import Config, as_flags, choose_task, new_run_dir
from mjfleet.api.command_process import CommandProcess, folder_of
from mjfleet.api.run import Run
from mjfleet.api.task_by_value import ClassTask
from mjfleet.errors import UserError
from mjfleet.runs.config_yaml import placement_flags, write_config
from mjfleet.runs.run_json import CONFIG_FILE

OF_COMMAND = ("seeds", "per_run", "dry_run", "resume", "fork", "as_trained", "config")
"""Flags of `train` that this function has no equal for."""


def train(
    task: str | type,
    *,
    name: str | None = None,
    config: Config | None = None,
    background: bool = False,
    **changes: Any,
) -> Run:
    """Train a policy, as the command `train` does, and return the run.

    The run's workers are other processes. Ctrl-C, or a notebook's "interrupt kernel", saves and
    returns the run as stopped; a second one stops at once.

    Args:
        task: the name of a task, or a subclass of `mjfleet.Env`. The class may be defined in the
            script or the notebook; `env=` is then its configuration, `agent=` an AgentConfig.
        name: of the task of a class. None: the class's name, `ReachEnv` becomes `reach`.
        config: where the configuration begins: a file as for `train --config`, a mapping or a
            TrainConfig. None: the task's defaults.
        background: whether to return at once. The run is then watched, stopped and waited for by
            the methods of `Run`. When this process ends, it saves and stops.
        changes: fields of TrainConfig, which are the flags of `train`: `gpu_ids=[0, 1]`,
            `gpu_ids="all"`, `gpu_ids=None` for the CPU, `env={"num_envs": 256}`,
            `agent={"max_iterations": 50}`.

    Raises:
        UserError: a value is not allowed, or the configuration needs what this machine lacks;
            no run is left.
        TrainingError: a worker has failed, or training was killed.
    """
    found, planned = choose_task(task, name, config, changes)
    if wrong := [flag for flag in OF_COMMAND if getattr(planned, flag)]:
        raise UserError(f"{wrong[0]}: it is a flag of the command `train` alone.")
    files = found.files() if isinstance(found, ClassTask) else {}
    run_dir, made = new_run_dir(planned)
    folder = folder_of(files, run_dir)  # Other hosts, which read them, share the disk of runs.
    if files:
        planned = replace(planned, tasks_dir=str(folder / "tasks"))
    file = folder / CONFIG_FILE
    write_config(file, found.name, planned)
    # What does not count in a file, and a teacher, of which it has none, are flags.
    flags = as_flags({"run_dir": run_dir, "teacher": planned.teacher})
    flags += placement_flags(planned, found.defaults())
    command = ["train", found.name, "--config", str(file), *flags]
    process = CommandProcess(command, not background, folder, made)
    return Run.of_process(process, run_dir, background)
