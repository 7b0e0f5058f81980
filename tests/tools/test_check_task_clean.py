"""`mjfleet check-task` accuses nobody: bundled tasks and correct variations of the template."""

import re
from pathlib import Path

import pytest

from mjfleet.registry import discover

from ..conftest import Output
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

TARGET = "        self.sim.mocap_pos[:, 0, :2] = self.target"
IMPORT = "from mjfleet.env import Env\n"


def term(name: str, value: str) -> Change:
    """Add a reward term."""
    return TERM, f'{TERM}            "{name}": {value},\n'


VARIATIONS: dict[str, list[Change]] = {
    "terms: of the change of actions, sparse, for progress, for staying alive": [
        after(
            SETUP,
            'self.last = self.add_state("last")',
            'self.gain = self.add_state("gain")',
            'self.fresh = self.add_state("fresh", dtype=torch.bool, reset=True)',
        ),
        (
            METHODS,
            "    def after_physics(self):\n"
            "        distance = self.way_to_target().norm(dim=1)\n"
            "        self.gain[:] = torch.where(self.fresh, 0.0, self.last - distance)\n"
            "        self.last[:] = distance\n        self.fresh.fill_(False)\n\n"
            f"{METHODS}",
        ),
        after(REWARDS, "jerk = (self.action - self.previous_action).square().sum(dim=1)"),
        term("jerk", "-0.1 * jerk"),
        term("near", "(distance < 0.02).float()"),
        term("progress", "10.0 * self.gain"),
        term("alive", "torch.ones_like(distance)"),
        term("fall", "-1.0 * self.terminated()"),
        term("off", "lambda: self.sim.qvel.square().sum(dim=1)"),
        method("reward_weights", '{"off": 0.0}'),
        method("terminated", "self.sim.qvel.norm(dim=1) > 15.0"),
    ],
    "memory, late actions, pushes, the last action, a clock": [
        (IMPORT, "from mjfleet.env import Delay, Env, History, Timer\n"),
        after(
            SETUP,
            "self.seen = History(self, 12, 3)",
            "self.late = Delay(self, 2, 0, 3)",
            "self.next_push = Timer(self, 0.2, 0.5)",
            "draw = lambda mask: self.uniform(1, 0.0, 6.28).squeeze(1)",
            'self.phase = self.add_state("phase", reset=draw)',
        ),
        ("action.clamp(-1.0, 1.0)", "self.late(action).clamp(-1.0, 1.0)"),
        after(
            APPLY.replace("action.clamp", "self.late(action).clamp"),
            "push = self.uniform(2, -1.0, 1.0)",
            "self.sim.qvel[:] += torch.where(self.next_push.due.unsqueeze(1), push, 0.0)",
            "self.phase += 0.1",
        ),
        (SEEN, f"{SEEN[:-1]}, self.action, *self.clock())"),
        ('"actor": state + noise', '"actor": self.seen(state + noise)'),
        term("swing", "self.phase.sin() * self.sim.qvel[:, 0]"),
        method("clock", "self.phase.sin().unsqueeze(1), self.phase.cos().unsqueeze(1)"),
    ],
    "levels, a start to get away from, a moving target, arrows, metrics": [
        (IMPORT, "from mjfleet.env import Env, Levels, Timer\n"),
        after(
            SETUP,
            "self.next_target = Timer(self, 0.3, 0.6)",
            "self.levels = Levels(self, 5)",
            'self.start = self.add_state("start", 2, reset="keep")',
        ),
        (
            METHODS,
            "    def end_episode(self, mask):\n"
            "        distance = self.way_to_target().norm(dim=1)\n"
            "        self.levels.move(mask & (distance < 0.1), mask & (distance > 0.2))\n\n"
            f"{METHODS}",
        ),
        after(
            RESET,
            "speed = self.levels.now.unsqueeze(1) * self.uniform(2, -1.0, 1.0)",
            "self.write(mask, self.sim.qvel, speed)",
        ),
        (TARGET, f"        self.write(mask, self.start, pose)\n{TARGET}"),
        (
            OBSERVE,
            "        moved = self.uniform(2, -0.3, 0.3)\n"
            "        fires = self.next_target.due.unsqueeze(1)\n"
            "        self.target[:] = torch.where(fires, moved, self.target)\n"
            f"{TARGET}\n{OBSERVE}",
        ),
        term("away", "0.1 * (self.sim.qpos - self.start).abs().sum(dim=1)"),
        term("aim", "(self.sim.qvel * self.target).sum(dim=1) / (self.target.norm(dim=1) + 0.1)"),
        method("metrics", '{"level": self.levels.now.float()}'),
        method("debug_vis", '{"way": (self.sim.sensor("fingertip"), self.sim.xpos[:, 1])}'),
    ],
    "failures that come late: by a count, at a time, at a high speed": [
        after(SETUP, 'self.far = self.add_state("far")'),
        (
            METHODS,
            "    def after_physics(self):\n"
            "        self.far[:] = torch.where(self.sim.qpos[:, 0] > 1.0, self.far + 1, 0.0)\n\n"
            "    def terminated(self):\n"
            "        late = (self.episode_length_buf > 190) & (self.sim.qpos[:, 0] > 2.0)\n"
            "        return late | (self.far > 150) | (self.sim.qvel.norm(dim=1) > 200.0)\n\n"
            f"{METHODS}",
        ),
    ],
    "an image with a dark border": [
        after(
            OBSERVE,
            "tip = self.sim.sensor('fingertip')[:, None, None, :1].float()",
            "image = torch.nn.functional.pad(tip, (2, 2, 2, 2))",
        ),
        ('"critic": state}', '"critic": state, "camera": image}'),
    ],
}


@pytest.mark.parametrize("name", VARIATIONS)
def test_correct_variations_are_clean(here: Path, name: str) -> None:
    write_arm(here, *VARIATIONS[name])
    assert mistakes_on_native(here) == []


# The Go2 has the Go1's environments. Of the tasks that other packages define, a few are checked.
OWN = [name for name, found in discover({}).tasks.items() if not found.task.packages]


FAST = ("cartpole-balance",)
GIVEN = "pendulum-swingup", "ant-v5", "humanoid-v5"
OTHERS = [name for name in (*OWN, *GIVEN) if name not in FAST and "go2" not in name]


@pytest.mark.parametrize(
    "name", ["arm", *FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_the_template_and_the_bundled_tasks_are_clean(
    here: Path, printed: Output, name: str
) -> None:
    write_arm(here)
    assert re.search("^nothing (else )?found$", printed("check-task", name), re.MULTILINE)
