"""`play`: shows a policy, in whole episodes or a viewer. Importing it imports nothing heavy."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from mjfleet.cli.run_command import run_and_exit
from mjfleet.config import EnvConfig, TrainConfig
from mjfleet.config.flags import HELP, LIST_FLAGS, parse_flags, parse_known
from mjfleet.config.launch_config import GpuRequest
from mjfleet.config.validation import (
    MAX_COUNT,
    Checked,
    Folder,
    Name,
    OptionalCount,
    OptionalFolder,
    OptionalName,
    Positive,
    between,
)
from mjfleet.errors import UserError
from mjfleet.launch.devices import choose_devices
from mjfleet.launch.launch_plan import make_plan
from mjfleet.registry import FoundTask, discover
from mjfleet.runs.find_run import LATEST
from mjfleet.runs.named_run import NamedRun
from mjfleet.runs.run_files import only
from mjfleet.tools.output_file import check_output, write_output
from mjfleet.tools.play.policy_episodes import Actions, Player, evaluate, playing
from mjfleet.tools.trained_policy import find_policy
from mjfleet.utils.console import print_line
from mjfleet.utils.packages import need_extra
from mjfleet.video.render_process import render
from mjfleet.worker.stop_signals import StopRequest

Viewer = Literal["native", "web"]
VIEWER_MAX_ENVS = {"native": 1, "web": 16, None: 64}  # By viewer; the native one shows one.


@dataclass(frozen=True, kw_only=True)
class PlayArguments(Checked):
    """Play whole episodes, each from a reset, with the mean action of a trained policy."""

    resume: OptionalName = None
    """Run directory, checkpoint, part of a run's name, `latest` (the task's newest run), or a run
    on W&B: `wandb:<entity>/<project>/<run>`, also with `:model_<n>`."""
    pretrained: bool = False
    """Play the policy that comes with the task, instead of one of your own."""
    actions: Actions | None = None
    """`zero` or `random` (standard normal) actions instead of a policy's."""
    episodes: OptionalCount = None
    """Episodes in total, rounded up to the same number in each environment; `None`: one in each."""
    output: OptionalName = None
    """JSON file for the numbers of the table; null for a number that is not finite."""
    clip: OptionalName = None
    """Name of the only clip to follow, among those with which the policy was trained."""
    terminations: bool = True
    """Whether episodes end where the robot has failed."""
    video: OptionalName = None
    """MP4 file to write: the first environments, from the beginning of their first episodes."""
    video_seconds: Positive = 10.0
    """Simulated seconds that the video shows."""
    camera: OptionalName = None
    """Camera of the task whose image is shown beside the scene, in a viewer or a video."""
    viewer: Viewer | None = None
    """Show episodes in real time, in MuJoCo's own window (`native`) or in a browser (`web`)."""
    host: Name = "localhost"
    """Address of the web viewer: `localhost` for this machine only, 0.0.0.0 for all machines that
    can reach it."""
    port: Annotated[int, between(1, 64000)] = 8080
    """Port of the web viewer; if it is in use, the next free port."""
    seed: Annotated[int, between(0, MAX_COUNT)] = 1
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
    """Use the run's copy of the task's code, with which the policy was trained."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The task's environment, by default as in the run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.viewer and (self.episodes or self.output or self.video):
            raise UserError(
                "--episodes, --output and --video: no viewer has them; it plays until it is closed."
            )
        is_web = self.viewer == "web"
        for name, needs, is_met in (
            ("video_seconds", "--video FILE", self.video),
            ("camera", "--viewer or --video FILE", self.viewer or self.video),
            ("host", "--viewer web", is_web),
            ("port", "--viewer web", is_web),
            ("as_trained", "a trained policy", not self.actions),
        ):
            if not is_met and getattr(self, name) != getattr(PlayArguments, name):
                raise UserError(f"--{name.replace('_', '-')} is for {needs}.")


def main() -> None:
    run_and_exit(play)


def play(arguments: Sequence[str]) -> int:
    """Play episodes and print their table, or open a viewer until it is closed."""
    word = arguments[0] if arguments and not arguments[0].startswith("-") else ""
    flags = list(arguments[1:] if word else arguments)
    start, _ = parse_known(PlayArguments, flags, "play")
    registry = discover(os.environ, start.tasks_dir)
    wants_help = bool({*HELP, LIST_FLAGS} & set(flags))
    if wants_help and not word:
        text = f"{PlayArguments.__doc__}\n\ntasks: {', '.join(registry.tasks)}"
        parse_flags(PlayArguments, flags, "play <task or run>", description=text)
    if not word and start.resume is None:
        raise UserError("the task or a run comes first; `play --help` lists tasks.")
    chosen = [start.resume, start.pretrained or None, start.actions].count(None)
    if chosen == 3 and word not in registry.tasks and not wants_help:
        flags, start, word = [*flags, "--resume", word], replace(start, resume=word), ""
    elif chosen != 2 and not wants_help:
        raise UserError(
            "give one of --resume RUN (a run, a checkpoint or `latest`) to play a trained policy, "
            "--pretrained to play the one that comes with the task, and --actions zero or "
            "--actions random to look at the task without one."
        )
    if start.actions or wants_help:
        found = registry.find(word)
        return _play(found, flags, start.viewer, found.defaults())
    try:
        found, config, run = find_policy(
            start.resume or word, Path(start.log_root), start.tasks_dir, task=word or None,
            is_pretrained=start.pretrained, as_trained=start.as_trained,
        )  # fmt: skip
    except UserError as no_run:
        name = "" if word else start.resume
        if name and name != LATEST and "/" not in name and not Path(name).exists():
            try:
                registry.find(name)
            except UserError as no_task:
                raise UserError(f"{no_task}\n{no_run}") from None
        raise
    return _play(found, flags, start.viewer, config, run)


def _play(
    found: FoundTask,
    flags: Sequence[str],
    viewer: Viewer | None,
    trained: TrainConfig,
    run: NamedRun | None = None,
) -> int:
    """Play a policy, or the actions that the flags name, by the configuration of its training."""
    num_envs = min(trained.env.num_envs, VIEWER_MAX_ENVS[viewer])
    default = PlayArguments(env=replace(trained.env, num_envs=num_envs))
    summary = found.task.summary
    parsed = parse_flags(PlayArguments, flags, f"play {found.name}", default, description=summary)
    if parsed.viewer == "web":
        need_extra("viewer", "--viewer web", ("mjviser", "viser"))
    if parsed.output is not None:
        check_output("--output", parsed.output, [".json"])
    if parsed.video is not None:
        check_output("--video", parsed.video, [".mp4"])
    own = {name: getattr(parsed, name) for name in ("gpu_ids", "engine", "cpu_threads", "env")}
    agent = replace(trained.agent, seed=parsed.seed)
    config = replace(trained, **own, agent=agent, cpu_workers=None, resume=None)
    config = only(found, config, parsed.clip) if parsed.clip else config
    devices = choose_devices(config, os.environ)
    if len(devices.names) > 1:
        raise UserError("--gpu-ids: `play` uses one GPU.")
    plan = make_plan(found, config, [devices])
    played = run.policy if run else parsed.actions
    assert played is not None
    name = played.name if isinstance(played, Path) else f"{played} actions"
    name = "pretrained" if parsed.pretrained else name
    print_line(f"playing {played}: {config.env.num_envs} environments, {plan.engine} engine")
    with StopRequest().installed() as stop, playing(found, config, plan, played) as player:
        cameras = {camera.name: camera for camera in player.env.policy_cameras}
        if parsed.camera and parsed.camera not in cameras:
            known = ", ".join(cameras) or "none"
            raise UserError(f"--camera {parsed.camera}: the task sees by: {known}.")
        camera = parsed.camera and cameras[parsed.camera]
        player.env.ends_on_failure = parsed.terminations
        if parsed.viewer:
            _show(player, name, parsed, run, stop, camera)
        else:
            _play_episodes(player, f"{found.name}, {name.removesuffix('.pt')}", parsed, camera)
    return 0


def _show(
    player: Player,
    name: str,
    parsed: PlayArguments,
    run: NamedRun | None,
    stop: StopRequest,
    camera: Any,
) -> None:
    """Open a viewer until it is closed."""
    from mjfleet.tools.play.realtime_playback import NEWEST, Playback

    folder = run.policy.parent if run and run.run_dir else None
    # A run that is named may still be training; a checkpoint stays.
    stays = folder and not (parsed.resume and not Path(parsed.resume).is_file())
    playback = Playback(player, name, folder, name if stays else NEWEST, stop.check, camera)
    if parsed.viewer == "web":
        from mjfleet.tools.play.web_viewer import show_in_browser

        show_in_browser(playback, parsed.host, parsed.port)
    else:
        from mjfleet.tools.play.window_viewer import show_in_window

        show_in_window(playback)


def _play_episodes(player: Player, title: str, parsed: PlayArguments, camera: Any) -> None:
    """Print the table of whole episodes, and write the files that the flags name."""
    recorder = None
    if parsed.video:
        from mjfleet.env.step_recorder import StepRecorder
        from mjfleet.video.state_recording import StateRecorder

        player.env.recorder = StepRecorder(num_steps=1)
        recorder = StateRecorder(player.env, parsed.video_seconds, camera)
    sums = evaluate(player, parsed.episodes or player.env.num_envs, recorder)
    print_line(sums.table)
    if parsed.output:
        numbers = {  # JSON has no number that is not finite.
            name: {key: number if math.isfinite(number) else None for key, number in row.items()}
            for name, row in sums.numbers.items()
        }
        text = json.dumps(numbers, indent=2) + "\n"
        write_output(Path(parsed.output), lambda file: file.write(text.encode()))
        print_line(f"wrote {parsed.output}")
    if parsed.video and recorder:
        print_line(f"\ndrawing {parsed.video}: {parsed.video_seconds:g} s")
        render(recorder.finish(title), Path(parsed.video))
        print_line(f"wrote {parsed.video}")


if __name__ == "__main__":
    main()
