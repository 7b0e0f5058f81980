"""A copy of the task that `mjfleet new-task` writes, with some of its text replaced."""

from collections.abc import Sequence
from pathlib import Path

from mjfleet.registry import discover
from mjfleet.tools.check_task.examine import describe, on_native
from mjfleet.tools.new_task import new_task

Change = tuple[str, str]

SETUP = '        self.target = self.add_state("target", 2, reset="keep")\n'
RESET = "        pose = self.uniform(2, -2.0, 2.0)\n"
APPLY = "        self.sim.ctrl[:] = action.clamp(-1.0, 1.0)\n"
OBSERVE = "        angles, speeds = self.sim.qpos, self.sim.qvel\n"
REWARDS = "        distance = self.way_to_target().norm(dim=1)\n"
TERM = '            "approach": -50.0 * dt * distance,\n'
SEEN = "0.2 * speeds, way)"
METHODS = "    def way_to_target"


def after(anchor: str, *lines: str) -> Change:
    """Write lines after one of the lines above."""
    indent = anchor[: len(anchor) - len(anchor.lstrip())]
    return anchor, anchor + "".join(f"{indent}{line}\n" for line in lines)


def method(name: str, value: str) -> Change:
    """Write a method without arguments that returns `value`."""
    return METHODS, f"    def {name}(self):\n        return {value}\n\n{METHODS}"


def write_arm(root: Path, *changes: Change, **files: Sequence[Change]) -> None:
    """Write tasks/arm under `root`, which is the working directory.

    Args:
        root: where.
        changes: texts of env.py and what replaces them, once each, in order.
        files: the same of `config` and `model`.
    """
    assert new_task(["arm"]) == 0
    named = {"env.py": changes, "config.py": files.get("config", ())}
    for name, replaced in (named | {"model.xml": files.get("model", ())}).items():
        path = root / "tasks/arm" / name
        text = path.read_text()
        for old, new in replaced:
            assert old in text, old
            text = text.replace(old, new, 1)
        path.write_text(text)


def mistakes_on_native(root: Path) -> list[str]:
    """Make the checks that need MuJoCo's own engine alone; return mistakes and warnings."""
    found = discover({}, str(root / "tasks")).tasks["arm"]
    texts: list[str] = []
    try:
        texts += [finding.text for finding in on_native(found)]
    except Exception as error:
        texts.append(describe(error, found))
    return texts
