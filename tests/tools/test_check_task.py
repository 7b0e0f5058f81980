"""`mjfleet check-task`: it finds each mistake that is planted, with its line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mjfleet.cli.dispatcher import mjfleet

from ..conftest import Run
from .arm import (
    APPLY,
    METHODS,
    OBSERVE,
    RESET,
    REWARDS,
    SEEN,
    SETUP,
    TERM,
    Change,
    after,
    method,
    mistakes_on_native,
    write_arm,
)  # fmt: skip

Check = Callable[..., list[str]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Check the template with some of its text replaced, on MuJoCo's own engine."""
    monkeypatch.chdir(tmp_path)

    def run_check(*changes: Change, **files: list[Change]) -> list[str]:
        write_arm(tmp_path, *changes, **files)
        return mistakes_on_native(tmp_path)

    return run_check


POSE = "pose = self.uniform(2, -2.0, 2.0)"
TARGET = "        self.sim.mocap_pos[:, 0, :2] = self.target"
EFFORT = '"effort": -self.cfg.effort_weight * dt * effort'
COMMAND = [
    after(SETUP, "self.command = torch.zeros(self.num_envs, 2, device=self.device)"),
    (TARGET, "        if not self.command_override:\n"
     "            drawn = self.uniform(2, -1.0, 1.0)\n"
     f"            self.command = torch.where(world, drawn, self.command)\n{TARGET}"),
    (SEEN, "0.2 * speeds, way, self.command)"),
    (TERM, f'{TERM}            "follow": -(self.sim.qvel - self.command).square().sum(dim=1),\n'),
    method("commands", '{"one": (self.command[:, 0], -1.0, 1.0),'
           ' "two": (self.command[:, 1], -1.0, 1.0)}'),
]  # fmt: skip


def commanded(*changes: Change) -> list[Change]:
    """Return the changes that add commands, with changes of their own."""
    result = []
    for old, new in COMMAND:
        for ours, theirs in changes:
            new = new.replace(ours, theirs)  # noqa: PLW2901
        result.append((old, new))
    return result


MISTAKES: list[tuple[list[Change], list[str]]] = [
    # What no checkpoint holds, and random numbers that are not the worker's own.
    (
        [
            ("import torch\n", "import numpy as np\nimport torch\n\nCOUNT = [0]\n"),
            ("import math\n", "import math\nimport random\n"),
            ('    model_file = "model.xml"\n', '    model_file = "model.xml"\n    total = 0\n'),
            after(SETUP, "self.own = torch.Generator().manual_seed(0)"),
            after(APPLY, "ArmEnv.total += 1", "COUNT[0] += 1"),
            (POSE, f"{POSE} * np.random.rand()\n        pose = pose + 0.1 * random.random()\n"
             "        pose = pose + torch.rand(self.num_envs, 2, device=self.device)\n"
             "        pose = pose + torch.rand(self.num_envs, 2, generator=self.own)"),
        ],
        [
            r"ArmEnv.total \+= 1`: ArmEnv.total changes",
            r"COUNT\[0\] \+= 1`: env.COUNT changes",
            r"np.random.rand\(\)`: draws from NumPy's global",
            r"random.random\(\)`: draws from Python's global",
            r"device=self.device\)`: draws from torch's global",
            r"generator=self.own\)`: draws from a generator of the task's own",
        ],
    ),
    # Tensors on the CPU; terms and actions without use.
    (
        [
            after(
                SETUP,
                "self.factor = torch.ones(2)", "self.list = []",
            ),
            (APPLY, "        self.sim.ctrl[:, 0] = action[:, 0].clamp(-1.0, 1.0)\n"),
            ("5.0 * self.way_to_target()", "5.0 * self.way_to_target() * self.factor"),
            (EFFORT, '"effort": 0 * effort'),
            method("terminated", "self.sim.qpos[:, 0] > 1000"),
        ],
        [
            r"self.factor = torch.ones\(2\)`: makes a tensor on the CPU, and meets others",
            r"'effort'\]: 0 in all environments",
            r"action columns 1 changes nothing within 20 steps: apply\(\) does nothing",
            r"qpos\[:, 0\] > 1000`: terminated\(\) is never true",
        ],
    ),
    # What is read or kept where it must not be; masses; methods that change what they are shown.
    (
        [
            after(SETUP, 'self.sim.expand("body_mass")[:, 2] += 0.2',
                  "self.smooth = torch.zeros_like(self.action)",
                  "self.part = torch.linspace(0, 1, self.num_envs, device=self.device)"),
            (APPLY, "        self.smooth = 0.5 * self.smooth + 0.5 * action\n"
             "        self.sim.ctrl[:] = self.smooth.clamp(-1.0, 1.0)\n"),
            (TARGET, '        self.sim.qvel[:, 0] = torch.where(mask, self.sim.sensor("fingertip")'
             f"[:, 0], self.sim.qvel[:, 0])\n{TARGET}"),
            after(REWARDS, "self.sim.qvel[:] *= 0.9"),
            method("debug_vis", '{"a": (self.normal(3), self.normal(3))}'),
        ],
        [
            r"sensor\(\"fingertip\"\)\[:, 0\].*`: sim.qvel follows from positions or sensors",
            r"self.smooth = 0.5 .*`: self.smooth goes on into the next episode",
            r"\[:, 2\] \+= 0.2`: body_mass changed without sim.set_const\(\)",
            r"qvel\[:\] \*= 0.9`: rewards\(\) changes sim.qvel",
            r"debug_vis\(\) changes the random numbers that follow",
            r"self.part of an environment is another one when there are 16",
        ],
    ),
    # Parts that are not reset, worlds that influence each other, loops, a bad description.
    (
        [
            ("import Env\n", "import Env, History\n"),
            after(SETUP, "self.seen = History(self, 8, 3)"),
            ('"actor": state + noise', '"actor": self.seen(state + noise)'),
            (TERM, TERM.replace("distance", "distance / distance.mean()")),
            after(REWARDS, "for i in range(self.num_envs):", "    distance[i] *= 1.0"),
        ],
        [
            r"self.seen goes on into the next episode; call self.seen.reset\(mask\)",
            r"distance.mean\(\),`: rewards\(\)\['approach'\] of an environment depends",
            r"distance\[i\] \*= 1.0`: runs once for each world",
        ],
    ),
    ([("action.clamp(-1.0, 1.0)", "(100 * action).clamp(-1.0, 1.0)"),
      ("0.2 * speeds", "20 * speeds"), ("way = 5.0", "way = 0.05")],
     [r"100 \* action.*`: the control of actuator shoulder, elbow is at its limit",
      r"\['actor'\] columns 4, 5: large, .*obs_normalization",
      r"0.05 \* .*`: observe\(\)\['critic'\] columns 6, 7: small"]),
    ([(APPLY, "        action.clamp(-1.0, 1.0)\n")], [r"the actions change nothing"]),
    ([("action.clamp(", "action.clamp_("),
      method("terminated", "self.episode_length_buf >= self.max_episode_length")],
     [r"action.clamp_\(.*`: apply\(\) changes the tensor that it is given",
      r"terminated\(\) is true when an episode reaches its greatest length"]),
    ([method("terminated", "self.way_to_target().norm(dim=1) < 10")],
     [r"norm\(dim=1\) < 10`: terminated\(\): true after the first step of 100%"]),
    ([after(SETUP, "self.start = self.sim.qpos.clone()"),
      ("speeds = self.sim.qpos", "speeds = self.start"),
      ("torch.where(world, target, self.target)", "target")],
     [r"observe\(\)\['critic'\] columns 0, 1, 2, 3: 1, 1, 0, 0 in all",
      r"reset_worlds\(mask\): changes self.target"]),
    ([("state = torch.cat((angles.cos(), angles.sin(), 0.2 * speeds, way), dim=1)",
       "state = torch.zeros(self.num_envs, 8, device=self.device)"), ("state + noise", "state")],
     [r"zeros\(self.num_envs, 8, .*`: observe\(\)\['actor'\]: 0, 0, 0, 0, ... in all environ"]),
    # Writes into copies, and into all worlds; what is no copy; numbers that are too short or large.
    (
        [
            after(SETUP, 'self.sim.expand("dof_damping")', "self.last_pose = self.sim.qpos",
                  "self.ids = torch.arange(2, device=self.device)"),
            (POSE, 'self.sim.expand("dof_damping")[:] = self.uniform(2, 0.03, 0.08)\n'
             f"        self.sim.qvel[:, self.ids][:, 0] = 1.0\n        {POSE}"),
            (TERM, f'{TERM}            "still": -(self.sim.qpos - self.last_pose).norm(dim=1),\n'
             '            "power": -100.0 * self.sim.qacc.square().sum(dim=1),\n'
             '            "rare": (14.0 - self.sim.qvel.norm(dim=1)).sqrt(),\n'),
            ('"critic": state', '"critic": state.half()'),
            method("terminated", "self.sim.qvel.norm(dim=1) > 10.0"),
        ],
        [
            r"dof_damping.*`: reset_worlds\(mask\): changes sim.expand\('dof_damping'\) where mask",
            r"self.ids\]\[:, 0\] = 1.0`: writes into a copy, since indices returned one",
            r"self.last_pose\).*`: subtracts a tensor from itself",
            r"'still'\]: 0 in all environments",
            r"'power'\]: large, root mean square",
            r"'rare'\]: not finite in .* of random states",
            r"'critic'\] is torch.float16; compute it in float32",
        ],
    ),
    # What is paid for the step before; worlds that see each other, also in rare states.
    (
        [
            after(SETUP, "self.kept = torch.zeros(self.num_envs, device=self.device)"),
            after(OBSERVE, "self.kept = self.way_to_target().norm(dim=1).float()"),
            (REWARDS, "        distance = self.kept\n"),
            ("return self.target - ", "return self.target[0] - "),
        ],
        [
            r"'approach'\] follows from the state before the step",
            r"of an environment depends on the other environments",
        ],
    ),
    (
        [method("terminated", "((self.sim.qvel[:, 0] > 8) | (self.sim.qvel[:, 1:] > 8)).any(0)")],
        [r"any\(0\)`: terminated\(\) of an environment depends on the other environments"],
    ),
    # An end of its own, a start out of range, a model changed too late, seeds of the host.
    (
        [
            ("import torch\n", "import numpy as np\nimport torch\n"),
            ("-2.0, 2.0)", "-5.0, 5.0)"),
            after(SETUP, "self.sim.model.body_mass[2] *= 3", "np.random.seed(0)",
                  "torch.manual_seed(0)"),
            method("terminated", "self.episode_length_buf == self.max_episode_length - 1"),
            (METHODS, "    def yaw(self, quat):\n        qx, qy, qz, qw = quat.unbind(dim=1)\n"
             f"        return torch.atan2(2 * qw * qz, 1 - 2 * (qx + qy + qz))\n\n{METHODS}"),
        ],
        [
            r"qx, qy, qz, qw = .*`: takes a quaternion apart as x, y, z, w",
            r"body_mass\[2\] \*= 3`: setup\(\) changes sim.model.body_mass",
            r"seed\(0\)`: uses NumPy's global generator",
            r"manual_seed\(0\)`: changes the state of torch's global",
            r"episodes start with joint elbow at -[0-9.]+ to [0-9.]+, beyond its range",
            r"terminated\(\) is true when an episode reaches 199 of 200 steps",
        ],
    ),
    ([("(self.num_envs, 2, ", "(512, 2, ")], [r"512.*; 32 is the number of environments here"]),
    # Commands.
    (commanded(("(self.command[:, 0], -1.0, 1.0)", "(self.command[:, 0], -0.5, 0.5)"),
               ("-(self.sim.qvel - self.command).square().sum(dim=1)",
                "(self.sim.qvel * self.command).sum(dim=1) / self.command.norm(dim=1)"),
               ("way, self.command)", "way, self.command[:, :1], 0 * self.command[:, 1:])")),
     [r"self.command.norm\(dim=1\),`: rewards\(\)\['follow'\]: not finite where all commands are 0",
      r"commands\(\)\['one'\] says -0.5 to 0.5, but its values are",
      r"commands\(\)\['two'\] changes nothing that the actor observes"]),
    (commanded(("(self.command[:, 0], ", "(self.command[:, 0].clone(), "),
               ("if not self.command_override", "if True")),
     [r"commands\(\)\['one'\] is a copy", r"commands\(\)\['two'\] does not keep what a viewer"]),
    ([after(SETUP, "self.wish = torch.zeros(self.num_envs, 2, device=self.device)"),
      (TARGET, "        wish = self.uniform(2, -1.0, 1.0)\n"
       f"        self.wish = torch.where(world, wish, self.wish)\n{TARGET}"),
      (TERM, f'{TERM}            "wish": self.sim.qvel[:, 0] / self.wish.norm(dim=1),\n')],
     [r"wish.norm\(dim=1\),`: rewards\(\)\['wish'\]: not finite where self.wish is 0",
      r"self.wish = .*`: self.wish is drawn in reset_worlds\(\), and rewards\(\)\['wish'\] dep"]),
    # Seeds.
    ([("import math\n", "import math\nimport time\n"), (POSE, f"{POSE} * (time.time() % 1)")],
     [r"differs between two environments with the same seed"]),
    ([after(RESET, "self.generator.manual_seed(0)")],
     [r"workers with different ranks have the same environments"]),
    # Shapes, dtypes and exceptions.
    ([('"critic": state}', '"critic": state[:, 0]}')],
     [r"ArmEnv.observe\(\)\['critic'\] has shape \(32,\)"]),
    ([('"critic": state}', '"critic": state, "on": state[:, :2] > 0}'),
      (TERM, TERM.replace("-50.0 * dt * distance", "-distance.long()")),
      ("0.2 * speeds", "speeds.sqrt()"),
      (EFFORT, '"effort": torch.nan_to_num(distance.log() / 0)')],
     [r"observe\(\)\['on'\] is torch.bool", r"\['approach'\] is torch.int64",
      r"speeds.sqrt.*observe\(\)\['critic'\] columns 4, 5: not finite, first in step"]),
    ([('"critic": state}', '"critic": state[:, int(self.sim.time.max() > 1) :]}')],
     [r"observe\(\) returned \{'actor': \(\(32, 8\).* and later \{'actor'"]),
    ([('sensor("fingertip")', 'sensor("hand")')],
     [r"env.py:\d+, in way_to_target\(\): .*ValueError"]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), MISTAKES)
def test_mistakes_are_found(check: Check, changes: list[Change], expected: list[str]) -> None:
    found = check(*changes)
    missing = [each for each in expected if not any(re.search(each, text) for text in found)]
    assert not missing, found
    assert len(found) <= len(expected) + 2, found  # Few consequences are told.


def test_masses_of_a_compiled_model_and_of_an_idle_motor_are_found(check: Check) -> None:
    model = (
        "    @classmethod\n    def make_model(cls, cfg):\n        model = super().make_model(cfg)\n"
    )
    model += "        model.body_mass[2] *= 3\n        return model\n\n"
    found = check((METHODS, model + METHODS), model=[('gear="0.25"', 'gear="0"')])
    (masses,) = [text for text in found if "make_model() changes masses" in text]
    assert "mj_setConst" in masses
    assert any("columns 1 changes nothing" in text and "gear" in text for text in found)


def test_an_actuator_may_have_several_controls_and_forces(check: Check) -> None:
    base = '<site name="base"/><body name="forearm"'
    servo = '<orientation name="servo" site="fingertip" refsite="base" forcerange="0 1"'
    limits = 'kp="1" kv="1" ctrlrange="-0.01 0.01"/></actuator>'
    found = check(
        ("action.clamp(-1.0, 1.0)", "action.clamp(-1.0, 1.0) * 1e3"),
        model=[('<body name="forearm"', base), ("</actuator>", f"{servo} {limits}")],
    )
    assert any("control of actuator shoulder, elbow, servo is at its limit" in t for t in found)


def test_of_a_state_that_is_not_finite_no_consequences_are_told(check: Check) -> None:
    (found,) = check(after(APPLY, "self.sim.qvel[:] = action.sqrt()"))
    assert "BADQVEL in 32 of 32 worlds" in found  # MuJoCo's own engine resets such worlds.


WAITS = """
        distance.sum().item()
        float(distance.sum())
        int(distance.sum())
        bool(distance.any())
        distance.cpu()
        distance.to("cpu")
        distance.numpy()
        distance.tolist()
        numpy.asarray(distance)
        distance.nonzero()
        torch.where(distance > 0)
        distance[distance > 0]
        distance[distance > 5] = 0.0
        distance[[0, 1]]
        torch.tensor([1.0, 2.0], device=self.device)
        1.0 if distance.any() else 2.0
        f"{distance.sum():.2f}"
"""


TERMINATED = """\
    def terminated(self) -> torch.Tensor:
        len(self.action.nonzero())
        return self.sim.qvel[:, 0] > 8.0
"""


def test_every_way_to_wait_for_the_device_is_found_once(check: Check, tmp_path: Path) -> None:
    found = check(
        after(REWARDS, *(line.strip() for line in WAITS.splitlines() if line)),
        ("import torch\n", "import numpy\nimport torch\n"),
        (RESET, "        mask.any().item()\n" + RESET),
        (APPLY, "        action.tolist()\n" + APPLY),
        (OBSERVE, "        self.target.sum().item()\n" + OBSERVE),
        (METHODS, f"{TERMINATED}\n{METHODS}"),
    )
    text = (tmp_path / "tasks/arm/env.py").read_text().splitlines()
    begin = text.index(WAITS.splitlines()[1])
    numbers = [begin + 1 + i for i in range(WAITS.count("\n") - 1)]
    others = ["mask.any().item()", "action.tolist()", "self.target.sum().item()"]
    others += ["len(self.action.nonzero())"]
    numbers += [text.index(f"        {code}") + 1 for code in others]
    lines = [int(re.findall(r"tasks/arm/env.py:(\d+), in ", line)[0]) for line in found]
    assert sorted(lines) == sorted(numbers)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (  # Only late in an episode.
            (TERM, TERM.replace("distance", "distance * torch.where(self.episode_length_buf > 60,"
             " self.sim.qpos.dtype.itemsize, 1)")),
            r"'approach'\]: differs between the engines after \d\d steps",
        ),
        (
            ("action.clamp(-1.0, 1.0)", "action.clamp(-1.0, 1.0) / self.sim.qpos.dtype.itemsize"),
            r"ctrl\[:\] = action.*`: sim.qvel columns 0, 1: differs between the engines after 1",
        ),
        (  # MuJoCo's own engine resets such worlds.
            after(APPLY, "self.sim.qvel[:] = action.sqrt()"),
            r"sim.qpos.*: not finite, first in step \d, .*on warp",
        ),
    ],
)  # fmt: skip
def test_engines_that_disagree_are_found_by_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    change: Change, expected: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MJFLEET_TASKS", raising=False)
    write_arm(tmp_path, change)
    capsys.readouterr()
    assert mjfleet(["check-task", "arm"]) == 1
    lines = capsys.readouterr().out.splitlines()
    mistakes = [line for line in lines if line.startswith("mistake: ")]
    assert any(re.search(expected, line) for line in mistakes)
    assert len(mistakes) <= 3


def test_what_warp_lacks_is_found_and_keeps_a_run_from_beginning(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_arm(tmp_path, model=[("<flag ", '<flag fwdinv="enable" ')])
    lacks = "MuJoCo-Warp cannot simulate this model: mjENBL_FWDINV is unsupported."
    trained = run("train", "arm", "--engine", "warp", "--gpu-ids", "None")
    assert trained.returncode == 2
    (line,) = (line for line in trained.stderr.splitlines() if "GPU" not in line)
    assert line.startswith(f"error: {lacks}")
    assert line.endswith("--engine native")
    assert not (tmp_path / "logs").exists()
    found = run("mjfleet", "check-task", "arm", "--tasks-dir", "tasks")
    assert found.returncode == 1
    assert f"mistake: {lacks}" in found.stdout


def test_bad_usage_is_one_message(run: Run) -> None:
    result = run("mjfleet", "check-task", "cartpole-balanse")
    assert result.returncode == 2
    assert "Did you mean cartpole-balance" in result.stderr
