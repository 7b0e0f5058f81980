"""Finds the policy that a distillation imitates. Runs in the process that the user started."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mjfleet.config import TeacherConfig, TrainConfig, from_dict
from mjfleet.errors import UserError
from mjfleet.runs.resume_choice import find_trained


def with_teacher(config: TrainConfig) -> TrainConfig:
    """Return the configuration with checkpoint and network of the run that `--teacher` names.

    Without the flag it keeps the teacher that it has; without a distillation it has none.

    Raises:
        UserError: the run does not exist or has no checkpoint, or there is no teacher where one is
            needed, or no use for one.
    """
    agent = config.agent
    if not agent.distils:
        if config.teacher is not None:
            raise UserError(
                "--teacher is for --agent.algorithm.name distillation, and it is "
                f"{agent.algorithm.name}."
            )
        return replace(config, agent=replace(agent, teacher=None))
    if config.teacher is None:
        if agent.teacher is None or agent.teacher.checkpoint is None:
            raise UserError("--agent.algorithm.name distillation needs --teacher RUN.")
        return config
    try:
        log_root = Path(config.log_root)
        _, trained = find_trained(config.teacher, log_root, config.trust, config.dry_run)
        checkpoint = str(trained.checkpoint.resolve())
        theirs = trained.config.get("agent")
        theirs = theirs if isinstance(theirs, dict) else {}
        observed = theirs.get("obs_groups")
        groups: Any = observed.get("actor") if isinstance(observed, dict) else None
        network = theirs.get("actor")
        data = network if isinstance(network, dict) else {}
        data = {**data, **({"obs_groups": groups} if groups else {}), "checkpoint": checkpoint}
        teacher = from_dict(TeacherConfig(), data)
    except UserError as error:
        raise UserError(f"--teacher {config.teacher}: {error}") from None
    return replace(config, agent=replace(agent, teacher=teacher))
