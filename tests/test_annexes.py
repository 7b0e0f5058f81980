"""Parts that can be deleted: without one, the rest imports, trains, and says what is missing."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import REPOSITORY, SMALL, TESTS

SOURCE = REPOSITORY / "src/mjfleet"
TRAIN = ("train", "cartpole-balance", "--gpu-ids", "None", "--agent.max-iterations", "1", *SMALL)
ANNEXES = {
    "legged": ("train", "go1-velocity-flat", "--dry-run"),
    "tracking": ("train", "g1-tracking", "--dry-run"),
    "video": (*TRAIN, "--video-interval", "1"),
    "nan_dump": (),
    "groups": (*TRAIN, "--seeds", "2"),
    "sweep": ("mjfleet", "sweep", "cartpole-balance", "--try", "agent.seed=1,2"),
    "submit": ("mjfleet", "submit", "slurm", "--", "train", "cartpole-balance"),
    "bench": ("mjfleet", "bench", "startup"),
    "api": (),
    "gym.py": (),
    "tools/check_task": ("mjfleet", "check-task", "cartpole-balance"),
    "tools/clip": ("mjfleet", "clip", "show", "task:clips/walk.npz", "--robot", "g1-tracking"),
    "tools/doctor": ("mjfleet", "doctor"),
    "tools/export": ("mjfleet", "export", "cartpole-balance"),
    "tools/from_model": ("mjfleet", "new-task", "arm", "--from", str(TESTS / "data/none.xml")),
    "tools/play": ("play", "cartpole-balance"),
    "tools/report": ("mjfleet", "report"),
    "loggers/wandb_logger.py": (*TRAIN, "--agent.logger", "wandb"),
    "loggers/tensorboard_logger.py": (),
    "rl/libraries/rsl_rl.py": (*TRAIN, "--agent.algorithm.name", "rsl_rl.algorithms:PPO"),
    "rl/libraries/skrl.py": (*TRAIN, "--agent.library", "skrl"),
    "rl/libraries/skrl_jax.py": (*TRAIN, "--agent.library", "skrl-jax"),
    "rl/libraries/rl_games.py": (*TRAIN, "--agent.library", "rl_games"),
}
"""A command that needs each part, by the part's path in mjfleet. Empty: no flag asks for it."""
IMPORT_ALL = """
import sys
from importlib import import_module
for module in sys.argv[1:]:
    import_module(module)
"""


def module_of(path: Path) -> str:
    """Return the name of a module's file in mjfleet."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_below(path: Path, annex: str) -> bool:
    return path.is_relative_to(SOURCE / annex)


def imported_at_once(path: Path) -> set[str]:
    """Return what a module of mjfleet imports when it is imported, and not for types alone."""
    found, todo = set[str](), [*ast.parse(path.read_text()).body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.If | ast.Try | ast.With):
            is_for_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            todo += [] if is_for_types else node.body
    return found


CORE = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if not any(is_below(path, annex) for annex in ANNEXES)
    and not {"task_template", "__main__.py"} & {*path.parts}
]


def test_the_core_imports_no_annex_before_it_is_needed() -> None:
    annexes = [module_of(SOURCE / annex) for annex in ANNEXES]
    for path in CORE:
        for module in imported_at_once(path):
            for annex in annexes:
                assert not f"{module}.".startswith(f"{annex}."), (path, module)


@pytest.mark.slow
@pytest.mark.parametrize("annex", ANNEXES)
def test_an_annex_can_be_deleted(tmp_path: Path, annex: str) -> None:
    copy = tmp_path / "src"
    shutil.copytree(SOURCE, copy / "mjfleet", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "tasks", copy / "mjfleet/tasks")
    deleted = copy / "mjfleet" / annex
    shutil.rmtree(deleted) if deleted.is_dir() else deleted.unlink()
    environ = os.environ | {"PYTHONPATH": str(copy), "WANDB_MODE": "offline"}

    def call(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-P", *words], env=environ, cwd=tmp_path, text=True,
            capture_output=True, check=False,
        )  # fmt: skip

    def command(name: str, *words: str) -> "subprocess.CompletedProcess[str]":
        code = f"import sys; sys.argv[0] = {name!r}; from mjfleet.cli import entry; entry.{name}()"
        return call("-c", code, *words)

    imported = call("-c", IMPORT_ALL, *map(module_of, CORE))
    assert imported.returncode == 0, imported.stderr
    helped = command("mjfleet", "--help")
    assert helped.returncode == 0, helped.stderr
    trained = command(*TRAIN)
    assert trained.returncode == 0, trained.stderr
    if needing := ANNEXES[annex]:
        before = sorted((tmp_path / "logs").rglob("*"))
        refused = command(*needing)
        name = module_of(SOURCE / annex)
        assert refused.returncode == 2, refused.stderr
        assert name in refused.stderr
        assert "Traceback" not in refused.stderr
        assert sorted((tmp_path / "logs").rglob("*")) == before
