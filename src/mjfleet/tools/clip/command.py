"""`mjfleet clip show` and `mjfleet clip convert`. Importing it imports nothing heavy."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mjfleet.config.flags import HELP, parse_flags
from mjfleet.config.validation import Checked, OptionalFolder, OptionalName
from mjfleet.errors import UserError
from mjfleet.registry import discover
from mjfleet.tools.output_file import check_output, write_output
from mjfleet.utils.console import print_line
from mjfleet.utils.input_files import file_name, path_of

if TYPE_CHECKING:
    from mjfleet.parts.motion.clips import Clip

Name = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]
PICTURES = ".png", ".svg", ".pdf"


@dataclass(frozen=True, kw_only=True)
class ClipArguments(Checked):
    """The flags of both commands."""

    file: Name
    """A clip, .csv or .npz; `task:clips/walk.npz` is one in the task's folder."""
    robot: str
    """A task of the robot, such as `g1-tracking`."""
    rate: float | None = None
    """Frames a second of a CSV file, by default 30; others name theirs."""
    tasks_dir: OptionalFolder = None
    """Folder of task folders that is searched first, before those of MJFLEET_TASKS."""


@dataclass(frozen=True, kw_only=True)
class ShowArguments(ClipArguments):
    """Print the length and path of a clip, and draw it."""

    video: OptionalName = None
    """MP4 file to write: the robot in the clip's poses."""
    plot: OptionalName = None
    """PNG, SVG or PDF file to write: the joints over time."""


@dataclass(frozen=True, kw_only=True)
class ConvertArguments(ClipArguments):
    """Write a clip in our own format, with the names of its joints."""

    output: str
    """NPZ file to write."""


COMMANDS = {"show": ShowArguments, "convert": ConvertArguments}


def clip(arguments: Sequence[str]) -> int:
    """Show or convert a clip."""
    name, *flags = arguments or ["--help"]
    if name in HELP:
        print("usage: mjfleet clip show|convert FILE --robot TASK ...; each has --help")
        return 0
    if name not in COMMANDS:
        raise UserError(f"there is no command `clip {name}`; there are {', '.join(COMMANDS)}.")
    parsed: Any = parse_flags(COMMANDS[name], flags, f"mjfleet clip {name}")
    show = isinstance(parsed, ShowArguments)
    video = show and parsed.video and check_output("--video", parsed.video, [".mp4"])
    plot = show and parsed.plot and check_output("--plot", parsed.plot, PICTURES)
    output = None if show else check_output("--output", parsed.output, [".npz"])
    found = discover(os.environ, parsed.tasks_dir).find(parsed.robot)
    found.check_packages()
    from mjfleet.parts.motion.clips import read_clip
    from mjfleet.worker.thread_limits import import_prepared

    import_prepared("cpu", "env.factory")
    model = found.load(found.task.env_class).make_model(found.defaults().env)
    path = path_of(parsed.file, [found.folder])
    read = read_clip(path, model, parsed.rate)
    if plot and not read.joints:
        raise UserError("--plot draws joints, and the robot has none.")
    print_line(f"{file_name(parsed.file)}: {described(read, model)}")
    if output:
        write_output(output, read.write)
        print_line(f"wrote {output}")
    if plot:
        _plot(read, plot)
        print_line(f"wrote {plot}")
    if video:
        _film(read, model, video)
        print_line(f"wrote {video}")
    return 0


def described(read: "Clip", model: Any) -> str:
    """Return the clip's length, the way of its base, and joints that leave their ranges."""
    from mjfleet.parts.motion.clips import Robot

    qpos, count = read.qpos.numpy(), len(read.joints)
    seconds = (len(qpos) - 1) / read.rate
    text = f"{seconds:.4g} s, {len(qpos)} frames at {read.rate:g} a second, {count} joints"
    if qpos.shape[1] > count:
        ahead, low, high = qpos[-1, :2] - qpos[0, :2], qpos[:, 2].min(), qpos[:, 2].max()
        text += f"; the base goes {(ahead @ ahead) ** 0.5:.3g} m, {low:.3g} to {high:.3g} m high"
    rows = qpos[:, qpos.shape[1] - count :].T
    for i, name, angles in zip(Robot(model).ids, read.joints, rows, strict=True):
        joint = model.joint(i)
        low, high = joint.range
        if joint.limited and (angles.min() < low or angles.max() > high):
            reached = f"{angles.min():.3g} to {angles.max():.3g}"
            text += f"\n{name} is {reached}, its range {low:.3g} to {high:.3g}"
    return text


def _plot(read: "Clip", path: Path) -> None:
    import numpy as np

    from mjfleet.tools.report.picture import Panel, draw

    seconds = np.arange(len(read.qpos)) / read.rate
    rows = zip(read.joints, read.qpos[:, -len(read.joints) :].numpy().T, strict=True)
    draw(path, [Panel("s", name, {"": np.stack((seconds, row))}) for name, row in rows])


def _film(read: "Clip", model: Any, path: Path) -> None:
    import numpy as np

    from mjfleet.parts.motion.clips import Robot
    from mjfleet.video.render_process import render
    from mjfleet.video.state_recording import MAX_RATE, StateRecording, pack_model

    every = max(1, round(read.rate / MAX_RATE))
    qpos = Robot(model).whole(read.qpos).numpy()[::every]
    steps = {"time": np.arange(len(qpos)) * every / read.rate, "qpos": qpos}
    steps = {name: values[:, None] for name, values in steps.items()}
    render(StateRecording(read.name, read.rate / every, pack_model(model), steps), path)
