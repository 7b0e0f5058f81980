"""`mjfleet check-task`: it finds each mistake that is planted, and none where there is none."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mjfleet.cli.dispatcher import mjfleet
from mjfleet.registry import discover

from ..conftest import Run

Check = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Check:
    """Check the template with some of its text replaced; returns exit code and mistakes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MJFLEET_TASKS", raising=False)
    assert mjfleet(["new-task", "arm"]) == 0

    def run_check(*changes: tuple[str, str], file: str = "env.py") -> tuple[int, list[str]]:
        path = tmp_path / "tasks/arm" / file
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path.write_text(text)
        capsys.readouterr()
        code = mjfleet(["check-task", "arm"])
        lines = capsys.readouterr().out.splitlines()
        return code, [line for line in lines if line.startswith("mistake: ")]

    return run_check


MISTAKES = [
    # Shapes and dtypes.
    (
        '"critic": state}',
        '"critic": state[:, 0]}',
        r"ArmEnv.observe\(\)\['critic'\] has shape \(32,\)",
    ),
    (
        '"critic": state}',
        '"critic": state, "on": state[:, :2] > 0}',
        r"observe\(\)\['on'\] is torch.bool",
    ),
    ('"approach": -distance', '"approach": -distance.long()', r"\['approach'\] is torch.int64"),
    (
        '"critic": state}',
        '"critic": state[:, int(self.sim.time.max() > 1) :]}',
        r"observe\(\) returned \{'actor': \(\(32, 8\).* and later \{'actor'",
    ),
    # Exceptions.
    ('sensor("fingertip")', 'sensor("hand")', r"env.py:\d+, in way_to_target\(\): .*ValueError"),
    # Numbers that are not finite.
    ("-distance,", "-distance.log() / 0,", r"\['approach'\]: not finite, first in step 1,"),
    ("0.2 * speeds", "speeds.sqrt()", r"observe\(\)\['critic'\] columns 4, 5: not finite"),
    # Rewards and observations that teach nothing.
    (
        '"effort": -self.cfg.effort_weight * effort',
        '"alive": 0 * effort + 1',
        r"rewards\(\)\['alive'\]: 1 in all",
    ),
    ("0.2 * speeds", "200 * speeds", r"\['actor'\] columns 4, 5: large, .*obs_normalization"),
    ("way = 5.0", "way = 1e-2", r"\['critic'\] columns 6, 7: small"),
    # Resets that leak.
    (
        "torch.where(world, target, self.target)",
        "target",
        r"reset_worlds\(mask\): changes self.target",
    ),
    (
        "torch.where(world, pose, self.sim.qpos)",
        "pose",
        r"reset_worlds\(mask\): changes sim.qpos",
    ),
    # Engines that disagree.
    (
        "self.uniform(2, -2.0, 2.0)",
        "torch.rand_like(self.sim.qpos)",
        r"columns 0, .*: differs between the engines at the start",
    ),
    (
        '"approach": -distance',
        '"approach": -distance * self.sim.qpos.dtype.itemsize',
        r"rewards\(\)\['approach'\]: differs between the engines after 1 steps",
    ),
]


@pytest.mark.parametrize(("old", "new", "mistake"), MISTAKES)
def test_a_mistake_is_found(check: Check, old: str, new: str, mistake: str) -> None:
    code, mistakes = check((old, new))
    assert code == 1
    assert any(re.search(mistake, line) for line in mistakes), mistakes


def test_of_a_state_that_is_not_finite_no_consequences_are_told(check: Check) -> None:
    write = "self.sim.ctrl[:] = action.clamp(-1.0, 1.0)"
    code, mistakes = check((write, f"{write}; self.sim.qvel[:] = action.sqrt()"))
    assert code == 1
    # MuJoCo's own engine resets such worlds.
    (native,) = [line for line in mistakes if "native on cpu only" in line]
    assert "BADQVEL in 32 of 32 worlds" in native
    bad = [line for line in mistakes if "not finite, first in step 1, in 32 of 32" in line]
    assert [line.split()[1] for line in bad] == ["sim.qpos", "sim.qvel"]


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
        torch.tensor([1.0, 2.0])
        1.0 if distance.any() else 2.0
        f"{distance.sum():.2f}"
"""


TERMINATED = """\
    def terminated(self) -> torch.Tensor:
        len(self.action.nonzero())
        return self.action[:, 0].isnan()
"""


def test_every_way_to_wait_for_the_device_is_found_once(check: Check, tmp_path: Path) -> None:
    first = "        effort = self.sim.ctrl.square().sum(dim=1)\n"
    code, mistakes = check(
        (first, WAITS + first),
        ("import torch\n", "import numpy\nimport torch\n"),
        ("        world = mask", "        mask.any().item()\n        world = mask"),
        ("        self.sim.ctrl[:]", "        action.tolist()\n        self.sim.ctrl[:]"),
        ("        angles, speeds", "        self.target.sum().item()\n        angles, speeds"),
        ("    def way_to", f"{TERMINATED}\n    def way_to"),
    )
    assert code == 1
    text = (tmp_path / "tasks/arm/env.py").read_text().splitlines()
    begin = text.index(WAITS.splitlines()[1])
    numbers = [begin + 1 + i for i in range(WAITS.count("\n") - 1)]
    others = ["mask.any().item()", "action.tolist()", "self.target.sum().item()"]
    others += ["len(self.action.nonzero())"]
    numbers += [text.index(f"        {code}") + 1 for code in others]
    found = [int(re.findall(r"tasks/arm/env.py:(\d+), in ", line)[0]) for line in mistakes]
    assert sorted(found) == sorted(numbers)


def test_normalised_observations_may_have_any_scale(check: Check, tmp_path: Path) -> None:
    config = tmp_path / "tasks/arm/config.py"
    dims = "hidden_dims=(64, 64)"
    config.write_text(config.read_text().replace(dims, f"{dims}, obs_normalization=True"))
    assert check(("0.2 * speeds", "200 * speeds")) == (0, [])


def test_the_template_and_the_bundled_tasks_are_clean(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check() == (0, [])
    for name in discover({}).tasks:
        assert mjfleet(["check-task", name]) == 0
        assert "nothing found" in capsys.readouterr().out


def test_bad_usage_is_one_message(run: Run) -> None:
    result = run("mjfleet", "check-task", "cartpole-balanse")
    assert result.returncode == 2
    assert "Did you mean cartpole-balance" in result.stderr
