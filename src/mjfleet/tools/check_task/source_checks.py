"""What a task's source shows and its numbers do not."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from mjfleet.tools.check_task.finding import Finding, Place

QUATERNION = re.compile(r"qpos|quat|\bq\b")


def quaternion_order(folder: Path) -> Iterator[Finding]:
    """Find quaternions that are taken apart as x, y, z, w."""
    for file in sorted(folder.glob("*.py")):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
                    continue
                names = [ast.unparse(each).lower() for each in node.targets[0].elts]
                value = ast.unparse(node.value)
                if [name[-1:] for name in names] == ["x", "y", "z", "w"] and (
                    QUATERNION.search(value) and "xyzw" not in value
                ):
                    yield Finding(
                        "takes a quaternion apart as x, y, z, w: MuJoCo's are w, x, y, z",
                        Place(str(file), node.lineno, function.name),
                        is_sure=False,
                    )
