"""`play <task or run> [flags]`: shows how well a policy does, in whole episodes or a viewer.

Runs in the process that the user started. Importing this file imports nothing heavy.
"""

import json
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mjfleet.cli.run_command import run_command
from mjfleet.config import EnvConfig, TrainConfig
from mjfleet.config.flags import HELP, LIST_FLAGS, parse_flags, parse_known
from mjfleet.config.launch_config import GpuRequest
from mjfleet.config.validation import (
    MOST,
    Checked,
    Folder,
    OptionalCount,
    OptionalFolder,
    Positive,
    between,
)
from mjfleet.errors import UserError
from mjfleet.launch.devices import choose_devices
from mjfleet.launch.launch_plan import make_plan
from mjfleet.registry import FoundTask, discover
from mjfleet.runs.own_runs import tasks_dir_of
from mjfleet.runs.pretrained import config_in, describe, find_pretrained
from mjfleet.runs.resume_choice import find_resume, find_task_of, run_at
from mjfleet.runs.run_lookup import LATEST
from mjfleet.tools.output_file import check_output
from mjfleet.tools.play.policy_episodes import Actions, Player, describe_levels, evaluate, playing
from mjfleet.tools.trained_task import trained_task
from mjfleet.utils.atomic_write import write_atomically
from mjfleet.utils.console import print_line
from mjfleet.utils.packages import need_extra
from mjfleet.video.render_process import render
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.thread_limits import prepare

if TYPE_CHECKING:
    from mjfleet.tools.play.realtime_playback import Playback

Viewer = Literal["native", "web"]
LOCALHOST, PORT = "localhost", 8080
VIDEO_SECONDS = 10.0
MAX_ENVS = {"native": 1, "web": 16, None: 64}  # By viewer; the native one shows one.


@dataclass(frozen=True, kw_only=True)
class PlayArguments(Checked):
    """Play whole episodes, each from a reset, with the mean action of a trained policy."""

    resume: str | None = None
    """Run directory, checkpoint, part of a run's name, `latest` (the experiment's newest run), or a
    run on W&B: `wandb:<entity>/<project>/<run>`, also with `:model_<n>`."""
    pretrained: bool = False
    """Play the policy that the task's folder holds, instead of one of your own."""
    actions: Actions | None = None
    """`zero` or `random` (standard normal) actions instead of a policy's."""
    episodes: OptionalCount = None
    """Episodes in total, rounded up to the same number in each environment; `None`: one in each."""
    output: str | None = None
    """JSON file to write: the numbers of the table."""
    video: str | None = None
    """MP4 file to write: the first environments, from the beginning of their first episodes."""
    video_seconds: Positive = VIDEO_SECONDS
    """Simulated seconds that the video shows."""
    viewer: Viewer | None = None
    """Show episodes in real time, in MuJoCo's own window (`native`) or in a browser (`web`)."""
    host: str = LOCALHOST
    """Address of the web viewer: for this machine alone, or 0.0.0.0 for all that can reach it."""
    port: Annotated[int, between(1, 2**16 - 1)] = PORT
    """Port of the web viewer, or the next free one."""
    seed: Annotated[int, between(0, MOST)] = 1
    """Seed of all random numbers."""
    gpu_ids: GpuRequest = "auto"
    """`auto` (GPU 0, else the CPU), `None` (the CPU), or the index of a visible GPU."""
    engine: Literal["auto", "warp", "native"] = "auto"
    """`warp` (MuJoCo-Warp), `native` (MuJoCo's threads, CPU only); `auto`: warp on a GPU only."""
    cpu_threads: OptionalCount = None
    """CPU threads; `None`: one for each core that this process may use."""
    log_root: Folder = "logs"
    """Folder that holds the run directories."""
    tasks_dir: OptionalFolder = None
    """Folder of task folders that is searched first, before those of MJFLEET_TASKS."""
    as_trained: bool = False
    """Use the task's code as it was when the policy was trained, of which the run keeps a copy."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The task's environment, by default as in the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.viewer and (self.episodes or self.output or self.video):
            raise UserError(
                "--episodes, --output and --video: no viewer has them; it plays until it is closed."
            )
        if self.video is None and self.video_seconds != VIDEO_SECONDS:
            raise UserError("--video-seconds: it needs --video FILE.")
        if self.viewer != "web" and (self.host, self.port) != (LOCALHOST, PORT):
            raise UserError("--host and --port: only --viewer web has them.")


@dataclass(frozen=True, kw_only=True)
class Start:
    """The flags that say what is played. They are read before all others."""

    resume: str | None = None
    pretrained: bool = False
    actions: str | None = None
    viewer: str | None = None
    as_trained: bool = False
    log_root: str = "logs"
    tasks_dir: str | None = None


def main() -> None:
    sys.exit(run_command(play, sys.argv[1:]))


def play(arguments: Sequence[str]) -> int:
    """Play episodes and print their table, or open a viewer until it is closed."""
    wants_help = bool({*HELP, LIST_FLAGS} & set(arguments))
    if not arguments or (wants_help and arguments[0].startswith("-")):
        start, _ = parse_known(Start, arguments)
        tasks = ", ".join(discover(os.environ, start.tasks_dir).tasks)
        text = f"{PlayArguments.__doc__}\n\ntasks: {tasks}"
        with suppress(SystemExit):
            parse_flags(
                PlayArguments, arguments or ["--help"], "play <task or run>", description=text
            )
        return 0 if arguments else 2
    name, *flags = arguments if wants_help else _with_task(arguments)
    start, _ = parse_known(Start, flags)
    wanted, as_trained = start.resume, start.as_trained
    run_dir = None if wanted is None else run_at(wanted)
    registry = discover(os.environ, start.tasks_dir or (run_dir and tasks_dir_of(run_dir)))
    find = registry.tasks.get if run_dir else registry.find  # A run keeps the code of its task.
    found = None if as_trained else find(name)
    if wants_help or start.actions or (wanted is None and not start.pretrained):
        found = registry.find(name)
        return _play(found, flags, found.defaults())
    if wanted is None:
        policy = find_pretrained(registry, name)
        print_line(f"pretrained: {describe(policy)}")
        found, trained = trained_task(policy, name, registry.find(name), config_in(policy), False)
        return _play(found, flags, trained, policy)
    experiment = found.defaults().agent.experiment_name if found else name
    resume = find_resume(wanted, name, Path(start.log_root, experiment))
    policy = resume.checkpoint
    if policy is None or resume.networks_only:
        raise UserError(f"--resume {wanted}: {resume.run_dir} has no checkpoint yet.")
    for note in resume.notes:
        print_line(note)
    recorded = resume.config or config_in(policy)
    found, trained = trained_task(policy, name, found, recorded, as_trained)
    return _play(found, flags, trained, policy, policy.parent if resume.run_dir else None)


def _with_task(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments with the task in front, where a run alone is named."""
    start, _ = parse_known(Start, arguments)
    root, word = Path(start.log_root), arguments[0]
    if word.startswith("-"):
        if start.resume is None:
            raise UserError("the task or a run comes first; `play --help` lists tasks.")
        task, path = find_task_of(start.resume, root)
        return [task, *arguments, "--resume", str(path)]
    registry = discover(os.environ, start.tasks_dir)
    if start.resume or start.actions or start.pretrained or word in registry.tasks:
        return arguments
    try:
        task, path = find_task_of(word, root, flag="")
    except UserError as no_run:
        if "/" in word or word == LATEST:
            raise
        try:
            registry.find(word)
        except UserError as no_task:
            raise UserError(f"{no_task}\n{no_run}") from None
        raise
    return [task, *arguments[1:], "--resume", str(path)]


def _play(
    found: FoundTask,
    flags: Sequence[str],
    trained: TrainConfig,
    policy: Path | None = None,
    folder: Path | None = None,
) -> int:
    """Play a policy, or the actions that the flags name, by the configuration of its training.

    `folder` has checkpoints to choose from.
    """
    num_envs = min(trained.env.num_envs, MAX_ENVS.get(parse_known(Start, flags)[0].viewer, 1))
    default = PlayArguments(env=replace(trained.env, num_envs=num_envs))
    summary = found.task.summary
    parsed = parse_flags(PlayArguments, flags, f"play {found.name}", default, description=summary)
    if parsed.as_trained and parsed.resume is None:
        raise UserError("--as-trained: it needs --resume RUN, whose code is used.")
    if (parsed.resume, parsed.pretrained or None, parsed.actions).count(None) != 2:
        raise UserError(
            "give one of --resume RUN (a run, a checkpoint or `latest`) to play a trained policy, "
            "--pretrained to play the one that comes with the task, and --actions zero or "
            "--actions random to look at the task without one."
        )
    played = parsed.actions or policy
    assert played is not None
    show = _viewer(parsed) if parsed.viewer else None
    if parsed.output is not None:
        check_output("--output", parsed.output, [".json"])
    if parsed.video is not None:
        check_output("--video", parsed.video, [".mp4"])
    own = {name: getattr(parsed, name) for name in ("gpu_ids", "engine", "cpu_threads", "env")}
    agent = replace(trained.agent, seed=parsed.seed)
    config = replace(trained, **own, agent=agent, cpu_workers=None, resume=None)
    devices = choose_devices(config, os.environ)
    if len(devices.names) > 1:
        raise UserError("--gpu-ids: `play` uses one GPU.")
    plan = make_plan(found, config, [devices], {})
    print_line(f"playing {played}: {config.env.num_envs} environments, {plan.engine} engine")
    name = played.name if isinstance(played, Path) else f"{played} actions"
    name = "pretrained" if parsed.pretrained else name
    with StopRequest().installed(), playing(found, config, plan, played) as player:
        if levels := describe_levels(player.env):
            print_line(levels)
        if show:
            from mjfleet.tools.play.realtime_playback import Playback

            # A run that is named may still be training; a checkpoint stays.
            follows = not (parsed.pretrained or (parsed.resume and Path(parsed.resume).is_file()))
            show(Playback(player, name, folder, follows))
        else:
            _play_episodes(player, f"{found.name}, {name.removesuffix('.pt')}", parsed)
    return 0


def _viewer(parsed: PlayArguments) -> "Callable[[Playback], object]":
    """Return the function that shows a playback until the viewer is closed.

    Raises:
        UserError: it cannot be opened here.
    """
    if parsed.viewer == "web":
        need_extra("viewer", "--viewer web", ("mjviser", "viser"))
        prepare()
        from mjfleet.tools.play.web_viewer import free_port, show_in_browser

        port, token = free_port(parsed.host, parsed.port), secrets.token_urlsafe(24)
        return partial(show_in_browser, host=parsed.host, port=port, token=token)
    prepare()
    from mjfleet.tools.play.window_viewer import check_display, show_in_window

    check_display()
    return show_in_window


def _play_episodes(player: Player, title: str, parsed: PlayArguments) -> None:
    """Print the table of whole episodes, and write the files that the flags name."""
    count = parsed.episodes or player.env.num_envs
    sums, recording = evaluate(player, count, title if parsed.video else None, parsed.video_seconds)
    print_line(sums.table)
    if parsed.output:
        text = json.dumps(sums.numbers, indent=2) + "\n"
        write_atomically(Path(parsed.output), lambda file: file.write(text.encode()))
        print_line(f"wrote {parsed.output}")
    if parsed.video and recording:
        print_line(f"\ndrawing {parsed.video}: {parsed.video_seconds:g} s")
        render(recording, Path(parsed.video))
        print_line(f"wrote {parsed.video}")


if __name__ == "__main__":
    main()
