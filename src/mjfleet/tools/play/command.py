"""`play <task> [flags]`: how well a policy does, over whole episodes."""

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal

from mjfleet.cli.flags import parse_flags, peek
from mjfleet.config import EnvConfig, TrainConfig, from_dict
from mjfleet.config.launch_config import GpuRequest
from mjfleet.config.validation import at_least, between, check, optional
from mjfleet.errors import UserError, run_command
from mjfleet.launch.devices import select_devices
from mjfleet.launch.launch_plan import Host, make_plan
from mjfleet.launch.launcher import make_worker_args
from mjfleet.registry import FoundTask, discover
from mjfleet.runs.resume_choice import find_resume, read_recorded, take_tasks_dir
from mjfleet.tools.play.policy_episodes import Actions, evaluate
from mjfleet.tools.play.viewer import NO_DISPLAY, Viewer, free_port, view
from mjfleet.utils.console import print_line
from mjfleet.utils.hardware_names import count_gpus
from mjfleet.utils.packages import need_extra
from mjfleet.video.render_process import draw
from mjfleet.worker.stop_signals import StopRequest

WORLDS = 64
LOCALHOST, PORT = "localhost", 8080
WATCHED_WORLDS = {"native": 1, "web": 16}
"""Worlds of a viewer, one of which MuJoCo's own shows."""


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
    video: str | None = None
    """MP4 file to write: a few of the worlds, for the length of an episode."""
    viewer: Viewer | None = None
    """Watch it in real time, in MuJoCo's own window (`native`) or in a browser (`web`)."""
    host: str = LOCALHOST
    """Where the web viewer listens: this machine alone, or 0.0.0.0 for whoever can reach it."""
    port: int = PORT
    """Port of the web viewer; the next one that is free."""
    seed: int = 1
    """Seed of everything random."""
    gpu_ids: GpuRequest = "auto"
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
        check(self, port=between(1, 2**16 - 1))
        if self.viewer and (self.episodes or self.video):
            raise UserError("--episodes and --video: a viewer plays until it is closed.")
        if self.viewer != "web" and (self.host, self.port) != (LOCALHOST, PORT):
            raise UserError("--host and --port: they are for --viewer web.")
        if self.env.num_envs == "auto":
            raise UserError("--env.num-envs auto: to play takes a number.")


def main() -> None:
    """Entry point of the command `play`."""
    sys.exit(run_command(play, sys.argv[1:]))


def play(arguments: Sequence[str]) -> int:
    """Parse, play, and print a table; returns the exit code."""
    wanted = peek(arguments, "--resume")
    recorded = read_recorded(wanted) if wanted else {}
    registry = discover(os.environ, peek(arguments, "--tasks-dir") or take_tasks_dir(recorded))
    if not arguments or arguments[0].startswith("-"):
        print_line(f"usage: play <task> [flags]\n\ntasks: {', '.join(registry.tasks)}")
        return 0 if {"-h", "--help"} & set(arguments) else 2
    found, flags = registry.find(arguments[0]), arguments[1:]
    trained = from_dict(found.defaults(), recorded)
    parsed = _parse(found, flags, trained)
    checkpoint = follow = None
    if (asked := parsed.resume) is not None:
        experiment = Path(parsed.log_root, trained.agent.experiment_name)
        resume = find_resume(asked, found.name, experiment)
        trained = from_dict(found.defaults(), resume.config)
        parsed = _parse(found, flags, trained)
        checkpoint = resume.checkpoint
        if checkpoint is None:
            raise UserError(f"--resume {asked}: {'; '.join(resume.notes)}.")
        if not Path(asked).is_file():
            follow = checkpoint.parent  # A run, which may still be under way.
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
    if parsed.video is not None:
        _check_video(Path(parsed.video))
    cores = len(os.sched_getaffinity(0))
    plan = make_plan(found, config, [Host(devices=devices, cores=cores)], {}, datetime.now())
    print_line(
        f"playing {checkpoint or parsed.actions}: {config.num_envs} worlds, {plan.engine} engine"
    )
    job = make_worker_args(plan, config)
    with StopRequest().installed():
        policy = parsed.actions or checkpoint
        if parsed.viewer:
            view(job, policy, follow, parsed.viewer, parsed.host, parsed.port)
            return 0
        episodes = parsed.episodes or config.num_envs
        table, recording = evaluate(job, policy, episodes, record=parsed.video is not None)
        print_line(table)
        if parsed.video and recording:
            print_line(f"\ndrawing {parsed.video}")
            draw(recording, Path(parsed.video))
    return 0


def _check_video(video: Path) -> None:
    """Refuse a file that could not be written in the end."""
    if video.suffix != ".mp4" or video.is_dir():
        raise UserError(f"--video {video}: a file whose name ends in .mp4.")
    try:
        tempfile.TemporaryFile(dir=video.parent).close()
    except OSError as error:
        raise UserError(f"--video {video}: {video.parent}: {error.strerror}.") from None


def _parse(found: FoundTask, flags: Sequence[str], trained: TrainConfig) -> PlayArguments:
    """The flags; what they do not say of the environment is as it was in training."""
    worlds, most = trained.env.num_envs, WATCHED_WORLDS.get(peek(flags, "--viewer") or "", WORLDS)
    few = most if worlds == "auto" else min(worlds, most)
    parsed = parse_flags(
        PlayArguments,
        flags,
        f"play {found.name}",
        default=PlayArguments(env=replace(trained.env, num_envs=few)),
        description=found.task.summary,
    )
    if (parsed.resume is None) == (parsed.actions is None):
        raise UserError(
            "give --resume RUN, a checkpoint or `latest` for a trained policy, or --actions zero "
            "or random to look at the task without one."
        )
    if parsed.viewer == "web":
        need_extra("viewer", "--viewer web", ("mjviser", "viser"))
        free_port(parsed.host, parsed.port)
    displays = (os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    if parsed.viewer == "native" and not any(displays):
        raise UserError(NO_DISPLAY)
    return parsed


if __name__ == "__main__":
    main()
