"""Runs an exported policy in plain MuJoCo. It needs mujoco, numpy and onnxruntime, but not mjfleet.

python run_policy.py
    opens a window; with up and down, left and right, home and end the commands change, and
    with enter they become 0
python run_policy.py --seconds 20 --command forward=0.5 turn_left=1@5
    without a window; each command holds from a time in s on, at first 0
python run_policy.py --episodes FILE.npz
    repeats the episodes of `play ... --save-episodes FILE.npz` and prints the same figures
"""

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import mujoco
import numpy as np
import onnxruntime

from mjfleet.tools.export.unknown_robot import Robot  # The robot's own takes this place.

KEYS = ((265, 264), (263, 262), (268, 269))
"""Codes of the keys that raise and lower the first command, the last, and the second of three."""
ENTER = 257
MODEL = "model "  # Marks fields of the model, which differ among worlds.


def fail(why: str) -> NoReturn:
    """Say what is wrong, and end with the exit code of a mistake."""
    print(f"error: {why}", file=sys.stderr)
    raise SystemExit(2)


class Policy:
    """Returns the mean action for an observation."""

    def __init__(self, file: Path) -> None:
        try:
            self.session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
            self.known = json.loads(self.session.get_modelmeta().custom_metadata_map["policy.json"])
        except Exception as error:  # onnxruntime has no class of its own for its errors.
            fail(f"{file} is no policy of `mjfleet export`: {error}")
        self.reset()

    def reset(self) -> None:
        """Clear a recurrent network's memory."""
        inputs = self.session.get_inputs()[1:]
        self.memory = {i.name: np.zeros((i.shape[0], 1, i.shape[2]), np.float32) for i in inputs}

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        row = observation.astype(np.float32)[None]
        actions, *after = self.session.run(None, {"observations": row} | self.memory)
        self.memory = dict(zip(self.memory, after, strict=True))
        return np.asarray(actions)[0]


class Loop:
    """The policy, the robot, and MuJoCo in the place of the world."""

    def __init__(self, file: Path) -> None:
        world = file.with_suffix(".mjb")
        for needed in (file, world):
            if not needed.is_file():
                fail(f"there is no {needed}, which `mjfleet export` writes beside this script")
        self.policy = Policy(file)
        self.known = known = self.policy.known
        try:
            self.model = mujoco.MjModel.from_binary_path(str(world))
        except ValueError as error:
            versions = f"written by MuJoCo {known['mujoco_version']}, read by {mujoco.__version__}"
            fail(f"{world}: {error} ({versions})")
        names = [self.model.actuator(i).name for i in range(self.model.nactuator)]
        if names != known["actuator_names"]:
            fail(f"{world} is another robot than that of {file.name}: export both again")
        self.data = mujoco.MjData(self.model)
        self.robot = Robot(self.model, self.data, known)
        self.command = np.zeros(len(known["commands"]))
        """In the order of `commands` in policy.json."""

    def begin(self, start: dict[str, Any]) -> None:
        """Begin an episode from fields of MjData, or of the model: see `field`."""
        of_model = [name for name in start if name.startswith(MODEL)]
        for name in of_model:
            self.field(name)[:] = start[name]
        if of_model:
            mujoco.mj_setConst(self.model, self.data)
        mujoco.mj_resetData(self.model, self.data)
        for name in start.keys() - of_model:
            self.field(name)[:] = start[name]
        mujoco.mj_step1(self.model, self.data)
        self.robot.reset()
        self.policy.reset()

    def field(self, name: str) -> np.ndarray:
        """Return a field of MjData; `model <field>` is one of the model."""
        owner = self.model if name.startswith(MODEL) else self.data
        return getattr(owner, name.removeprefix(MODEL))

    def step(self) -> None:
        """Observe, act, and advance by 1 / `control_rate` seconds."""
        seen, size = self.robot.observe(self.command), self.known["observation_size"]
        if len(seen) != size:
            fail(f"Robot.observe() returns {len(seen)} numbers; the policy takes {size}")
        self.robot.act(self.policy(seen))
        self.wait()

    def wait(self) -> None:
        """Advance the simulation. On a robot: sleep until the next period begins."""
        mujoco.mj_step(self.model, self.data, self.known["decimation"])
        mujoco.mj_step1(self.model, self.data)  # Sensors of the new state.

    def play(self, steps: int, commands: Any) -> dict[str, float]:
        """Play an episode of at most `steps`; return its length and the sum of each measure.

        `commands` returns the command of a step.
        """
        sums = {"length": 0.0}
        for i in range(steps):
            self.command = commands(i)
            self.step()
            for name, value in {"length": 1.0, **self.robot.measure(self.command)}.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            if self.robot.has_failed():
                break
        return sums


def table(episodes: list[dict[str, float]]) -> str:
    """Return means over the episodes, and over all steps of what is named task/..., as `play`."""
    lines, steps = [], sum(episode["length"] for episode in episodes)
    for name in episodes[0]:
        values = np.array([episode[name] for episode in episodes])
        mean = values.sum() / steps if name.startswith("task/") else values.mean()
        lines.append(f"{name:<26} {mean:9.4g}")
    return "\n".join(lines)


def repeat(loop: Loop, file: Path) -> list[dict[str, float]]:
    """Play the episodes of a file again."""
    try:
        with np.load(file) as saved:
            fields = {name: np.asarray(values, float) for name, values in saved.items()}
        steps, commands = int(fields.pop("steps")), fields.pop("commands")
        sizes = {
            name: (values.shape[1:], loop.field(name).shape) for name, values in fields.items()
        }
        sizes["commands"] = (commands.shape[2:], loop.command.shape)
    except OSError as error:
        fail(f"--episodes {file}: {error.strerror or error}")
    except Exception:  # Whatever NumPy raises for whatever file.
        fail(f"--episodes {file} was not written by `play --save-episodes` for this robot")
    for name, (found, own) in sizes.items():
        if found != own:
            fail(f"--episodes {file} is of another robot: {name} has the shape {found}, not {own}")
    check(loop, f"--episodes {file}", steps, commands, fields)
    episodes = []
    for i in range(commands.shape[1]):
        loop.begin({name: values[i] for name, values in fields.items()})
        episodes.append(loop.play(steps, lambda t, i=i: commands[min(t, len(commands) - 1), i]))
    return episodes


def check(
    loop: Loop, what: str, steps: int, commands: np.ndarray, fields: dict[str, np.ndarray]
) -> None:
    """Refuse episodes that cannot be played, or whose commands are beyond those of training."""
    counts = {commands.shape[1], *map(len, fields.values())}
    if steps < 1 or 0 in commands.shape[:2] or len(counts) > 1:
        fail(f"{what} holds no episodes, or not the same number in each field")
    for name, values in {**fields, "commands": commands}.items():
        if not np.isfinite(values).all():
            fail(f"{what}: {name} has numbers that are not finite")
    for i, command in enumerate(loop.known["commands"]):
        told, (low, high) = commands[..., i], command["range"]
        most = 1e-6 * max(-low, high)  # Episodes hold numbers of single precision.
        if told.min() < min(low, 0) - most or told.max() > max(high, 0) + most:
            ends = f"from {told.min():g} to {told.max():g}"
            fail(f"{what}: {command['name']} is {ends}; its range is from {low:g} to {high:g}")


def script(loop: Loop, texts: list[str]) -> Any:
    """Return the command of each step, from texts such as forward=0.5 or turn_left=1@5."""
    ranges = {command["name"]: command["range"] for command in loop.known["commands"]}
    names, changes = list(ranges), []
    for text in texts:
        name, _, rest = text.partition("=")
        value, _, begin = rest.partition("@")
        if name not in names:
            fail(f"--command {text}: the commands are {', '.join(names) or 'none'}")
        (low, high), number = ranges[name], to_number(value)
        if not low <= number <= high or not to_number(begin or "0") >= 0:
            form = f"{name}=VALUE or {name}=VALUE@SECONDS"
            fail(f"--command {text}: write {form}, with a value from {low:g} to {high:g}")
        changes.append((float(begin or 0), names.index(name), number))
    if len({change[:2] for change in changes}) < len(changes):
        fail(f"--command {' '.join(texts)}: give one value of a command for each time")

    def at(step: int) -> np.ndarray:
        command = np.zeros(len(names))
        for begin, index, value in sorted(changes):
            if step >= begin * loop.known["control_rate"]:
                command[index] = value
        return command

    return at


def to_number(text: str) -> float:
    """Return what a text says; NaN for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def seconds(text: str) -> float:
    """Return a duration, for argparse."""
    if not 0 < to_number(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return float(text)


def show(loop: Loop) -> None:
    """Play in a window until it is closed."""
    from mujoco import viewer

    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        fail("there is no display for a window; --seconds 20 plays without one")
    commands = loop.known["commands"]
    pairs = (1, KEYS[2]), (len(commands) - 1, KEYS[1]), (0, KEYS[0])
    keys = {i: pair for i, pair in pairs if 0 <= i < len(commands)}

    def on_key(key: int) -> None:
        for i, (up, down) in keys.items():
            low, high = commands[i]["range"]
            moved = loop.command[i] + (high - low) / 10 * ((key == up) - (key == down))
            loop.command[i] = np.clip(moved, low, high)
        if key == ENTER:
            loop.command[:] = 0
        print(loop.command.round(3))

    loop.begin(loop.known["start"])
    with viewer.launch_passive(loop.model, loop.data, key_callback=on_key) as window:
        while window.is_running():
            end = time.monotonic() + 1 / loop.known["control_rate"]
            loop.step()
            if loop.robot.has_failed():
                loop.begin(loop.known["start"])
            window.sync()
            time.sleep(max(0.0, end - time.monotonic()))


def main() -> None:
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_it_is)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--seconds", type=seconds, help="play so long, without a window")
    how.add_argument("--episodes", type=Path, metavar="FILE.npz")
    form = "NAME=VALUE[@SECONDS]"
    parser.add_argument("--command", nargs="+", action="extend", default=[], metavar=form)
    parsed = parser.parse_args()
    if parsed.command and not parsed.seconds:
        parser.error("--command needs --seconds")
    loop = Loop(Path(__file__).with_name("POLICY"))
    if parsed.episodes:
        episodes = repeat(loop, parsed.episodes)
    elif parsed.seconds:
        commands = script(loop, parsed.command)
        loop.begin(loop.known["start"])
        steps = max(1, round(parsed.seconds * loop.known["control_rate"]))
        episodes = [loop.play(steps, commands)]
    else:
        show(loop)
        return
    print(f"{len(episodes)} episodes\n\n{table(episodes)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
