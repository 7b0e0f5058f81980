"""Runs a policy that `mjfleet export` has written, in plain MuJoCo: without mjfleet and torch.

python run_policy.py exported/policy.onnx --command forward=0.5
    opens a window
python run_policy.py exported/policy.onnx --command forward=0.5 turn_left=0.3 --seconds 20
    opens none, and prints how well the robot does

It needs mujoco, numpy and onnxruntime, and beside the policy the files policy.json and policy.mjb,
which are its description and its model. For a task of your own, complete `observe`; where an action
is not what the actuators take, `act` too; and `judge`, whose figures --seconds prints. On a real
robot, `observe` and `act` talk to its drivers instead.
"""

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnxruntime


def observe(data: mujoco.MjData, known: dict[str, Any]) -> dict[str, Any]:
    """Return what is measured, by the names of an observation's parts in policy.json.

    These are the values of the task's own `observe()`, without noise. `Robot` adds commands and the
    newest action, and repeats earlier frames.
    """
    if "clips" in known:
        return follow(data, known)
    if is_legged(data):
        return {
            "gyro": data.sensor("imu_gyro").data,  # rad/s, in the base's frame.
            "up": data.sensor("base_up").data,  # Against gravity, in the base's frame.
            "joint_positions": data.qpos[7:] - np.array(known["default_pose"]),
            "joint_velocities": data.qvel[6:],
        }
    if known["task"].startswith("cartpole-"):
        (cart, angle), (cart_speed, pole_speed) = data.qpos, data.qvel
        return {
            "cart": cart,
            "cosine": math.cos(angle),
            "sine": math.sin(angle),
            "cart_speed": cart_speed,
            "pole_speed": pole_speed,
        }
    raise SystemExit(f"error: complete observe() in {__file__} for the task {known['task']}")


def follow(data: mujoco.MjData, known: dict[str, Any]) -> dict[str, Any]:
    """Return what a robot that follows a clip measures, and the frame that `Robot` has put into
    `known`. A real robot lacks `anchor_position` and `velocity`: train without state estimation."""
    frame, anchor, back = known["frame"], data.body(known["anchor"]), np.zeros(4)
    mujoco.mju_negQuat(back, anchor.xquat)
    ahead, turn, matrix, speed = np.zeros(3), np.zeros(4), np.zeros(9), np.zeros(3)
    wanted = known["bodies"].index(known["anchor"])
    mujoco.mju_rotVecQuat(ahead, frame["body_pos_w"][wanted].astype(float) - anchor.xpos, back)
    mujoco.mju_mulQuat(turn, back, frame["body_quat_w"][wanted].astype(float))
    mujoco.mju_quat2Mat(matrix, turn)
    joints = [data.model.joint(name) for name in known["joint_names"]]
    places, dofs = ([int(getattr(j, k)[0]) for j in joints] for k in ("qposadr", "dofadr"))
    measured = {
        "reference_positions": frame["joint_pos"],
        "reference_velocities": frame["joint_vel"],
        "anchor_position": ahead,
        "anchor_rotation": matrix.reshape(3, 3)[:, :2].ravel(),
        "joint_positions": data.qpos[places] - np.array(known["default_pose"]),
        "joint_velocities": data.qvel[dofs],
    }
    if data.model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE:
        mujoco.mju_negQuat(back, data.qpos[3:7])
        mujoco.mju_rotVecQuat(speed, data.qvel[:3], back)
        measured |= {"velocity": speed, "gyro": data.qvel[3:6]}
    return measured


def act(action: np.ndarray, data: mujoco.MjData, known: dict[str, Any]) -> None:
    """Set what the actuators take: targets of a legged robot's joints in rad, or the action."""
    if is_legged(data) or "clips" in known:
        action = np.array(known["default_pose"]) + np.array(known["action_scale"]) * action
    data.ctrl[:] = action  # MuJoCo clamps it to `control_ranges`.


def judge(
    data: mujoco.MjData, known: dict[str, Any], command: dict[str, float]
) -> dict[str, float]:
    """Return numbers to judge a step by; none for a task that is not known here.

    A legged robot's are in the table of `play` too, in m/s and rad/s; the cart-pole's is the cosine
    of the pole's angle, which is 1 when upright.
    """
    if "clips" in known:
        places = [int(data.model.joint(name).qposadr[0]) for name in known["joint_names"]]
        frame, anchor = known["frame"], known["bodies"].index(known["anchor"])
        off = data.body(known["anchor"]).xpos - frame["body_pos_w"][anchor]
        joints = np.abs(data.qpos[places] - frame["joint_pos"]).mean()
        return {"joint_error": float(joints), "anchor_error": float(np.linalg.norm(off))}
    if known["task"].startswith("cartpole-"):
        return {"upright": math.cos(data.qpos[1])}
    if not is_legged(data):
        return {}
    velocity, gyro = data.sensor("base_linvel").data, data.sensor("imu_gyro").data
    return {
        "velocity_error": math.dist(velocity[:2], (command["forward"], command["left"])),
        "yaw_error": abs(gyro[2] - command["turn_left"]),
    }


def is_legged(data: mujoco.MjData) -> bool:
    """Return whether the model is one of mjfleet's legged robots, by a sensor that all have."""
    return mujoco.mj_name2id(data.model, mujoco.mjtObj.mjOBJ_SENSOR, "base_up") >= 0


class Robot:
    """The model in MuJoCo, and the policy that acts in it."""

    def __init__(self, policy: Path, clip: str | None = None) -> None:
        self.session = onnxruntime.InferenceSession(policy, providers=["CPUExecutionProvider"])
        self.known = json.loads(policy.with_suffix(".json").read_text())
        try:
            self.model = mujoco.MjModel.from_binary_path(str(policy.with_suffix(".mjb")))
        except ValueError as error:
            versions = f"{self.known['mujoco_version']} wrote it, this is {mujoco.__version__}"
            raise SystemExit(f"error: {error}\nMuJoCo {versions}") from None
        self.data = mujoco.MjData(self.model)
        if clip is not None and "clips" not in self.known:
            raise SystemExit(f"error: --clip {clip}: {policy} follows no clip")
        self.clip = self.choose(clip, policy.with_suffix(".npz")) if "clips" in self.known else {}
        if "images" in self.known:
            raise SystemExit(f"error: {policy} observes images, which this script does not make")
        if self.session.get_inputs()[0].name != "observations":
            raise SystemExit(f"error: {policy} has mjlab's form: export it without --format mjlab")
        taken, made = self.session.get_inputs()[0].shape[1], self.known["observation_size"]
        if taken != made:
            raise SystemExit(f"error: {policy} takes {taken} numbers, and policy.json has {made}")
        self.command = {command["name"]: 0.0 for command in self.known["commands"]}
        self.reset()

    def reset(self) -> None:
        """Begin an episode in the state that policy.json names."""
        mujoco.mj_resetData(self.model, self.data)
        for field, values in self.known["start"].items():
            getattr(self.data, field)[:] = values
        self.frame = 0
        if self.clip:
            self.data.qpos[:], self.data.qvel[:] = self.clip["qpos"][0], self.clip["qvel"][0]
        mujoco.mj_step1(self.model, self.data)  # Sensors of this state.
        self.action = np.zeros(self.known["action_size"])
        self.past: dict[str, list[np.ndarray]] = {}
        inputs = self.session.get_inputs()[1:]  # A recurrent network's memory, zeros at first.
        self.memory = {i.name: np.zeros((i.shape[0], 1, i.shape[2]), np.float32) for i in inputs}

    def choose(self, wanted: str | None, file: Path) -> dict[str, np.ndarray]:
        """Return the frames of a clip, the first one unless another is wanted."""
        names = [clip["name"] for clip in self.known["clips"]]
        name = wanted or names[0]
        if name not in names:
            raise SystemExit(f"error: --clip {name}: the clips are {', '.join(names)}")
        with np.load(file) as arrays:
            kinds = ("qpos", "qvel", "joint_pos", "joint_vel", "body_pos_w", "body_quat_w")
            return {kind: arrays[f"{name}/{kind}"] for kind in kinds}

    def set_command(self, name: str, value: float) -> None:
        """Set a command; ValueError if there is none of this name or training had no such value."""
        ranges = {command["name"]: command["range"] for command in self.known["commands"]}
        if name not in ranges:
            raise ValueError(f"the commands are {', '.join(ranges) or 'none'}")
        low, high = ranges[name]
        if not low <= value <= high:
            raise ValueError(f"{name} must be from {low:g} to {high:g}")
        self.command[name] = value

    def step(self) -> np.ndarray:
        """Observe, act, and advance by 1 / `control_rate` seconds; return the observation."""
        observed = self.observe()
        inputs = {"observations": observed.astype(np.float32)[None], **self.memory}
        actions, *memory = self.session.run(None, inputs)
        self.memory = dict(zip(self.memory, memory, strict=True))
        self.action = np.array(actions, float)[0]
        act(self.action, self.data, self.known)
        mujoco.mj_step(self.model, self.data, self.known["decimation"])
        mujoco.mj_step1(self.model, self.data)
        self.frame += 1
        self.known["frame"] = self.now()
        return observed

    def now(self) -> dict[str, np.ndarray]:
        """Return the current frame of the clip, or the last one; empty without a clip."""
        return {k: frames[min(self.frame, len(frames) - 1)] for k, frames in self.clip.items()}

    def observe(self) -> np.ndarray:
        """Return the observation of a new step, with its parts in the order of policy.json."""
        self.known["frame"] = self.now()
        measured = observe(self.data, self.known) | self.command | {"last_actions": self.action}
        groups = self.known["observations"]
        return np.concatenate([self.read(group, measured) for group in groups])

    def read(self, part: dict[str, Any], measured: dict[str, Any]) -> np.ndarray:
        """Return the numbers of a part, which may have parts itself and repeat earlier frames."""
        name = part["name"]
        if "parts" not in part:
            if np.size(measured.get(name, ())) != part["size"]:
                raise SystemExit(f"error: observe() must return {part['size']} numbers as {name!r}")
            return np.array(measured[name], float).reshape(-1)
        now = np.concatenate([self.read(inner, measured) for inner in part["parts"]])
        frames = self.past.get(name) or [now] * part.get("history", 1)  # The first fills all.
        self.past[name] = [*frames[1:], now]  # The oldest comes first.
        return np.concatenate(self.past[name])


def main(arguments: list[str] | None = None) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("policy", type=Path, help="the file policy.onnx")
    parser.add_argument("--command", nargs="+", action="extend", default=[], metavar="NAME=VALUE")
    parser.add_argument("--clip", help="the clip to follow; the first one unless given")
    parser.add_argument("--seconds", type=float, help="play so long, without a window")
    parsed = parser.parse_args(arguments)
    for needed in (parsed.policy.with_suffix(end) for end in (".onnx", ".json", ".mjb")):
        if not needed.is_file():
            parser.error(f"there is no {needed}, which `mjfleet export` writes")
    if parsed.policy.suffix != ".onnx":
        parser.error(f"{parsed.policy} is no .onnx file")
    robot = Robot(parsed.policy, parsed.clip)
    for text in parsed.command:
        name, _, value = text.partition("=")
        try:
            robot.set_command(name, float(value))
        except ValueError as error:
            parser.error(f"--command {text}: {error}")
    if parsed.seconds is None:
        if not has_display():
            parser.error("there is no display with OpenGL for a window here: give --seconds")
        show(robot)
    elif 0 < parsed.seconds < math.inf:
        play(robot, max(1, round(parsed.seconds * robot.known["control_rate"])))
    else:
        parser.error("--seconds must be a number above 0")


def play(robot: Robot, steps: int) -> None:
    """Play without a window; print the means over all steps, or that there are none."""
    rows = []
    for _ in range(steps):
        robot.step()
        rows.append(judge(robot.data, robot.known, robot.command))
    if not rows[0]:
        task = robot.known["task"]
        print(f"played {steps} steps; for figures, complete judge() in {__file__} for {task}")
    for name in rows[0]:
        print(f"{name:<16}{np.mean([row[name] for row in rows]):9.4g}")


def has_display() -> bool:
    """Return whether a window opens; MuJoCo's viewer would end the process, or wait for ever."""
    import glfw  # Comes with mujoco.

    with warnings.catch_warnings(action="ignore"):  # GLFW warns about the same.
        glfw.init()
        glfw.window_hint(glfw.VISIBLE, glfw.FALSE)
        window = glfw.create_window(1, 1, "", None, None)
        glfw.terminate()
    return bool(window)


def show(robot: Robot) -> None:
    """Play in a window until it is closed."""
    from mujoco import viewer

    with viewer.launch_passive(robot.model, robot.data) as window:
        while window.is_running():
            end = time.monotonic() + 1 / robot.known["control_rate"]
            robot.step()
            window.sync()
            time.sleep(max(0.0, end - time.monotonic()))


if __name__ == "__main__":
    main()
