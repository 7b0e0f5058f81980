"""`mjfleet check-task` accuses nobody: bundled tasks and correct variations of the template."""

from pathlib import Path

import pytest

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.registry import discover

from .arm import (
    APPLY,
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

TARGET = "        self.sim.mocap_pos[:, 0, :2] = self.target"
IMPORT = "from mjfleet.env import Env\n"


def term(name: str, value: str) -> Change:
    """Add a reward term."""
    return TERM, f'{TERM}            "{name}": {value},\n'


VARIATIONS: dict[str, list[Change]] = {
    "terms: of the change of actions, sparse, for progress, for staying alive": [
        after(
            SETUP,
            "self.previous = torch.zeros_like(self.action)",
            "self.last = torch.zeros(self.num_envs, device=self.device)",
            "self.fresh = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)",
        ),
        after(RESET, "self.previous.masked_fill_(world, 0.0)", "self.fresh = self.fresh | mask"),
        after(
            REWARDS,
            "jerk = (self.action - self.previous).square().sum(dim=1)",
            "self.previous.copy_(self.action)",
            "progress = torch.where(self.fresh, 0.0, self.last - distance)",
            "self.last, self.fresh = distance.float(), torch.zeros_like(self.fresh)",
        ),
        term("jerk", "-0.1 * jerk"),
        term("near", "(distance < 0.02).float()"),
        term("progress", "10.0 * progress"),
        term("alive", "torch.ones_like(distance)"),
        term("fall", "-1.0 * self.terminated()"),
        term("off", "-self.cfg.off * self.sim.qvel.square().sum(dim=1)"),
        method("terminated", "self.sim.qvel.norm(dim=1) > 15.0"),
    ],
    "memory, late actions, pushes, the last action, a clock": [
        (IMPORT, "from mjfleet.env import Delay, Env, History, Timer\n"),
        after(
            SETUP,
            "self.seen = History(self, 12, 3)",
            "self.late = Delay(self, 2, 0, 3)",
            "self.next_push = Timer(self, 0.2, 0.5)",
            "self.phase = torch.zeros(self.num_envs, device=self.device)",
        ),
        after(
            RESET,
            "for part in (self.seen, self.late, self.next_push):",
            "    part.reset(mask)",
            "drawn = self.uniform(1, 0.0, 6.28).squeeze(1)",
            "self.phase = torch.where(mask, drawn, self.phase)",
        ),
        ("action.clamp(-1.0, 1.0)", "self.late(action).clamp(-1.0, 1.0)"),
        after(
            APPLY.replace("action.clamp", "self.late(action).clamp"),
            "push = self.uniform(2, -1.0, 1.0)",
            "self.sim.qvel[:] += torch.where(self.next_push().unsqueeze(1), push, 0.0)",
            "self.phase += 0.1",
        ),
        (SEEN, f"{SEEN[:-1]}, self.action, *self.clock())"),
        ('"actor": state + noise', '"actor": self.seen(state + noise)'),
        term("swing", "self.phase.sin() * self.sim.qvel[:, 0]"),
        method("clock", "self.phase.sin().unsqueeze(1), self.phase.cos().unsqueeze(1)"),
    ],
    "other masses, gains and damping, tables, a count of steps, own kinds": [
        ("import torch\n", "import numpy as np\nimport torch\n"),
        after(
            SETUP,
            'self.sim.expand("body_mass")[:, 2] += self.uniform(1, 0.0, 0.1).squeeze(1)',
            'self.sim.expand("actuator_gainprm")[:, :, 0] *= self.uniform(2, 0.8, 1.2)',
            "self.sim.set_const()",
            'self.damping = self.sim.expand("dof_damping")',
            "self.nominal = self.damping.clone()",
            "table = np.random.default_rng(0).uniform(0.9, 1.1, 2)",
            "self.table = torch.as_tensor(table, dtype=torch.float32, device=self.device)",
            "self.weights = torch.tensor([1.0, 0.5]).to(self.device)",
            "self.steps = torch.zeros((), dtype=torch.long, device=self.device)",
            "self.kind = self.env_ids % 3",
            "self.parts = {'a': torch.zeros(self.num_envs, device=self.device)}",
        ),
        after(
            RESET,
            "new = self.nominal * self.uniform(1, 0.5, 1.5)",
            "self.damping[:] = torch.where(world, new, self.damping)",
            "self.parts['a'] = self.parts['a'].masked_fill(mask, 0.0)",
        ),
        after(
            APPLY,
            "self.steps += 1",
            "self.parts['a'] = 0.9 * self.parts['a'] + 0.1 * action[:, 0]",
        ),
        term("steady", "-(self.table * self.weights).sum() * self.parts['a'].square()"),
        ('"critic": state}', '"critic": torch.cat((state, self.kind.unsqueeze(1)), dim=1)}'),
    ],
    "levels, a start to get away from, a length, a moving target, arrows, metrics": [
        (IMPORT, "from mjfleet.env import Env, Timer, next_levels\n"),
        after(
            SETUP,
            "self.next_target = Timer(self, 0.3, 0.6)",
            "self.level = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)",
            "self.distance = torch.full((self.num_envs,), 9.0, device=self.device)",
            "self.start = torch.zeros(self.num_envs, 2, device=self.device)",
            "self.length = torch.zeros(self.num_envs, device=self.device)",
        ),
        after(
            RESET,
            "self.next_target.reset(mask)",
            "up, down = mask & (self.distance < 0.1), mask & (self.distance > 0.2)",
            "self.level = next_levels(self, self.level, up, down, 5)",
            "speed = self.level.unsqueeze(1) * self.uniform(2, -1.0, 1.0)",
            "self.sim.qvel[:] = torch.where(world, speed, self.sim.qvel)",
            "self.length = torch.where(mask, self.episode_length_buf.float(), self.length)",
        ),
        (TARGET, f"        self.start = torch.where(world, pose, self.start)\n{TARGET}"),
        after(REWARDS, "self.distance = distance.float()"),
        (
            OBSERVE,
            "        moved = self.uniform(2, -0.3, 0.3)\n        fires = self.next_target()\n"
            "        self.target = torch.where(fires.unsqueeze(1), moved, self.target)\n"
            f"{TARGET}\n{OBSERVE}",
        ),
        term("away", "0.1 * (self.sim.qpos - self.start).abs().sum(dim=1)"),
        term("aim", "(self.sim.qvel * self.target).sum(dim=1) / (self.target.norm(dim=1) + 0.1)"),
        method("metrics", '{"distance": self.distance, "level": self.level.float()}'),
        method("debug_vis", '{"way": (self.sim.sensor("fingertip"), self.sim.xpos[:, 1])}'),
    ],
    "commands, one of which is switched off; control by two values; a smooth action": [
        after(
            SETUP,
            "self.command = torch.zeros(self.num_envs, 2, device=self.device)",
            "self.use = torch.tensor([1.0, 0.0], device=self.device)",
            "self.smooth = torch.zeros_like(self.action)",
        ),
        after(RESET, "self.smooth = self.smooth.masked_fill(world, 0.0)"),
        (
            TARGET,
            "        if not self.command_override:\n"
            "            drawn = self.use * self.uniform(2, -1.0, 1.0)\n"
            f"            self.command = torch.where(world, drawn, self.command)\n{TARGET}",
        ),
        (
            APPLY,
            "        self.smooth = 0.5 * self.smooth + 0.5 * action\n"
            "        self.sim.ctrl[:] = self.smooth.sign() * torch.ones_like(action)\n",
        ),
        ("effort = self.sim.ctrl.square()", "effort = self.action.square()"),
        (SEEN, f"{SEEN[:-1]}, self.command)"),
        term("follow", "-(self.sim.qvel - self.command).square().sum(dim=1)"),
        method(
            "commands",
            '{"one": (self.command[:, 0], -1.0, 1.0), "two": (self.command[:, 1], 0.0, 0.0)}',
        ),
        ('"actor": state + noise', '"actor": state'),
    ],
}
VARIATIONS["template's motors as a controller in apply, an end after a while"] = [
    after(SETUP, "self.torque = torch.zeros_like(self.action)"),
    after(RESET, "self.torque = self.torque.masked_fill(world, 0.0)"),
    (
        APPLY,
        "        self.torque = (action - 2.0 * self.sim.qpos - 0.2 * self.sim.qvel).float()\n"
        "        self.sim.ctrl[:] = self.torque.clamp(-1.0, 1.0)\n",
    ),
    (SEEN, f"{SEEN[:-1]}, self.torque.clamp(-5.0, 5.0))"),
    term("torque", "-0.01 * self.torque.square().sum(dim=1)"),
    term("arrived", "10.0 * (distance < 0.01)"),
    method(
        "terminated",
        "(self.episode_length_buf > 100) & (self.way_to_target().norm(dim=1) > 0.1)",
    ),
]
OFF = ("    effort_weight", '    off: float = 0.0\n    """Off."""\n    effort_weight')


@pytest.mark.parametrize("name", VARIATIONS)
def test_correct_variations_are_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_arm(tmp_path, *VARIATIONS[name], config=[OFF])
    assert mistakes_on_native(tmp_path) == []


def test_normalised_observations_and_position_motors_are_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dims = "hidden_dims=(64, 64)"
    normal = f"{dims}, obs_normalization=True"
    motor = '<motor name="shoulder" joint="shoulder" gear="0.5"/>'
    position = '<position name="shoulder" joint="shoulder" kp="2" kv="0.1" ctrlrange="-2 2" '
    write_arm(
        tmp_path,
        ("0.2 * speeds", "200 * speeds"),
        config=[(f"actor=ActorConfig({dims}", f"actor=ActorConfig({normal}"),
                (f"critic=CriticConfig({dims}", f"critic=CriticConfig({normal}")],
        model=[(motor, position + 'forcerange="-0.5 0.5"/>')],
    )  # fmt: skip
    assert mistakes_on_native(tmp_path) == []


# Tasks of other packages are as those define them, which is not always clean. The Go2 has the Go1's
# environments.
OWN = [name for name, found in discover({}).tasks.items() if not found.task.packages]


FAST = ("cartpole-balance",)
OTHERS = [name for name in (*OWN, "pendulum-swingup") if name not in FAST and "go2" not in name]


@pytest.mark.parametrize(
    "name", ["arm", *FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_the_template_and_the_bundled_tasks_are_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MJFLEET_TASKS", raising=False)
    write_arm(tmp_path)
    assert mjfleet(["check-task", name]) == 0
    assert "nothing found" in capsys.readouterr().out
