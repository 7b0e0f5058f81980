"""Finds what `--init-from` names: networks of another run. Runs in the launcher.

Resuming goes on from all that a checkpoint holds. Here a new run begins, which takes the networks
alone, and the other run may be of another task. Workers compare the networks.
"""

from dataclasses import replace
from pathlib import Path

from mjfleet.config import TrainConfig
from mjfleet.errors import UserError
from mjfleet.runs.resume_choice import Parent, Resume, choose, iteration_in, run_of_file
from mjfleet.runs.run_lookup import find_run, name_of


def begin_from(config: TrainConfig) -> tuple[Resume, TrainConfig]:
    """Return where a new run takes its networks, and its configuration, which names that file.

    Raises:
        UserError: the run or file does not exist, is damaged, or has no checkpoint.
    """
    flag = f"--init-from {config.init_from}"
    place = Path(config.log_root), config.agent.experiment_name
    path = find_run(config.init_from or "", flag, *place, dry_run=config.dry_run)
    run_dir = run_of_file(path, flag)
    checkpoint, notes = choose(path, "--init-from ")
    if checkpoint is None:
        raise UserError(f"{flag}: {path} has no checkpoint yet.")
    checkpoint = checkpoint.resolve()
    parent = Parent(
        run=run_dir and name_of(run_dir.resolve()),
        checkpoint=str(checkpoint),
        iteration=iteration_in(checkpoint),
        networks_only=True,
    )
    resume = Resume(None, checkpoint, {}, notes, parent=parent)
    return resume, replace(config, init_from=str(checkpoint))
