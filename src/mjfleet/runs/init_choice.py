"""Finds what `--init-from` names: networks of another run. Runs in the launcher.

Resuming goes on from all that a checkpoint holds. Here a new run begins, which takes the networks
alone, and the other run may be of another task.
"""

from dataclasses import replace
from pathlib import Path

from mjfleet.config import TrainConfig
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask
from mjfleet.runs.network_fit import describe_networks, misfit, told_networks
from mjfleet.runs.resume_choice import Origin, Resume, choose, iteration_in, run_of_file
from mjfleet.runs.run_lookup import find_run

FLAG = "--init-from "


def begin_from(found: FoundTask, config: TrainConfig) -> tuple[Resume, TrainConfig]:
    """Return where a new run takes its networks, and its configuration, which names that file.

    Workers compare all shapes. What is known without them is checked here: the policy's settings,
    and its sizes, if the task lists them and the checkpoint tells them.

    Raises:
        UserError: the run or file does not exist or is damaged, or its policy does not fit.
    """
    wanted = config.init_from or ""
    place = Path(config.log_root), config.agent.experiment_name
    path = find_run(wanted, FLAG + wanted, *place, dry_run=config.dry_run)
    run_dir = run_of_file(path, FLAG + wanted)
    checkpoint, notes = choose(path, FLAG)
    if checkpoint is None:
        raise UserError(f"{FLAG}{wanted}: {path} has no checkpoint yet.")
    checkpoint = checkpoint.resolve()
    sizes = found.task.observation_sizes or {}
    theirs, ours = (
        told_networks(checkpoint),
        describe_networks(config.agent, sizes, found.task.num_actions),
    )
    if why := misfit("actor", theirs.get("actor", {}), ours["actor"]):
        raise UserError(f"{FLAG}{wanted}: the actor of {checkpoint} does not fit: {why}.")
    name = run_dir and "/".join(run_dir.resolve().parts[-2:])
    origin = Origin(run=name, checkpoint=str(checkpoint), iteration=iteration_in(checkpoint))
    resume = Resume(None, checkpoint, {}, notes, init_from=origin)
    return resume, replace(config, init_from=str(checkpoint))
