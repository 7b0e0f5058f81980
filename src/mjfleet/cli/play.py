"""`play <task> [flags]`: how well a policy does, over whole episodes."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal

import tyro

from mjfleet.cli.arguments import PARSERS, STYLE, peek
from mjfleet.cli.train import guarded
from mjfleet.config import EnvConfig, TrainConfig, from_dict
from mjfleet.config.check import at_least, check, optional
from mjfleet.errors import UserError
from mjfleet.launch.devices import count_gpus, select_devices
from mjfleet.launch.launcher import make_job
from mjfleet.launch.plan import Host, make_plan
from mjfleet.launch.resume import find_resume, read_recorded
from mjfleet.registry import FoundTask, discover
from mjfleet.tell import tell
from mjfleet.worker.evaluation import Actions, evaluate
from mjfleet.worker.stop import StopRequest

WORLDS = 64


@dataclass(frozen=True, kw_only=True)
class PlayArguments:
    """Play whole episodes, each from a reset, with the mean action of a trained policy."""

    flags: ClassVar[str] = ""

    resume: str | None = None
    """Run directory, beginning of a run's name, checkpoint, or `latest`: the newest run."""
    actions: Actions | None = None
    """`zero` or `random` (standard normal) actions instead of a policy's."""
    episodes: int | None = None
    """Episodes in total, rounded up to the same number in each world; `None`: one in each."""
    seed: int = 1
    """Seed of everything random."""
    gpu_ids: list[int] | Literal["auto", "all"] | None = "auto"
    """`auto` (GPU 0, else the CPU), `None` (the CPU), or the index of a visible GPU."""
    engine: Literal["auto", "warp", "native"] = "auto"
    """`warp` (MuJoCo-Warp), `native` (MuJoCo's threads, CPU only); `auto`: warp on a GPU only."""
    cpu_threads: int | None = None
    """CPU threads; `None`: one for each core that this process may use."""
    log_root: str = "logs"
    """Folder under which run directories are."""
    tasks_dir: str | None = None
    """Folder of task folders that is searched first, before those of MJFLEET_TASKS."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The task's environment, as the run had it."""

    def __post_init__(self) -> None:
        check(self, episodes=optional(at_least(1)), seed=at_least(0))
        if self.env.num_envs == "auto":
            raise UserError("--env.num-envs auto: to play takes a number.")


def main() -> None:
    """Entry point of the command `play`."""
    sys.exit(guarded(play, sys.argv[1:]))


def play(arguments: Sequence[str]) -> int:
    """Parse, play, and print a table; returns the exit code."""
    registry = discover(os.environ, peek(arguments, "--tasks-dir"))
    if not arguments or arguments[0].startswith("-"):
        tell(f"usage: play <task> [flags]\n\ntasks: {', '.join(registry.tasks)}")
        return 0 if {"-h", "--help"} & set(arguments) else 2
    found, flags = registry.find(arguments[0]), arguments[1:]
    wanted = peek(flags, "--resume")
    trained = from_dict(found.defaults(), read_recorded(wanted) if wanted else {})
    parsed = _parse(found, flags, trained)
    checkpoint = None
    if parsed.resume is not None:
        experiment = Path(parsed.log_root, trained.agent.experiment_name)
        resume = find_resume(parsed.resume, found.name, experiment)
        trained = from_dict(found.defaults(), resume.config)
        parsed = _parse(found, flags, trained)
        checkpoint = resume.checkpoint
        if checkpoint is None:
            raise UserError(f"--resume {parsed.resume}: {'; '.join(resume.notes)}.")
    config = replace(
        trained,
        **{name: getattr(parsed, name) for name in ("gpu_ids", "engine", "cpu_threads", "env")},
        agent=replace(trained.agent, seed=parsed.seed),
        cpu_workers=None,
        resume=None,
    )
    gpus = 0 if parsed.gpu_ids is None or parsed.engine == "native" else count_gpus()
    devices = select_devices(parsed.gpu_ids, os.environ, gpus)
    if len(devices.names) > 1:
        raise UserError("--gpu-ids: to play takes one GPU.")
    cores = len(os.sched_getaffinity(0))
    plan = make_plan(found, config, [Host(devices=devices, cores=cores)], {}, datetime.now())
    tell(f"playing {checkpoint or parsed.actions}: {config.worlds} worlds, {plan.engine} engine")
    with StopRequest().installed():
        table = evaluate(
            make_job(plan, config), parsed.actions or checkpoint, parsed.episodes or config.worlds
        )
    tell(table)
    return 0


def _parse(found: FoundTask, flags: Sequence[str], trained: TrainConfig) -> PlayArguments:
    """The flags; what they do not say of the environment is as it was in training."""
    worlds = trained.env.num_envs
    few = WORLDS if worlds == "auto" else min(worlds, WORLDS)
    parsed = tyro.cli(
        PlayArguments,
        default=PlayArguments(env=replace(trained.env, num_envs=few)),
        args=flags,
        prog=f"play {found.name}",
        description=found.task.summary,
        config=STYLE,
        registry=PARSERS,
    )
    if (parsed.resume is None) == (parsed.actions is None):
        raise UserError(
            "give --resume RUN, a checkpoint or `latest` for a trained policy, or --actions zero "
            "or random to look at the task without one."
        )
    return parsed


if __name__ == "__main__":
    main()
