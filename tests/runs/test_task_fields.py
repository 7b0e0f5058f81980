"""Runs of a task whose configuration has paths, enumerations, mappings and optional fields."""

import shutil
from pathlib import Path

import pytest

from mjfleet.registry import discover

from ..conftest import Run, only_run
from .test_resume import SIX

BUNDLED = discover({}).tasks["cartpole-balance"].folder
KINDS = '''

class Gait(Enum):
    WALK = 1
    TROT = 2


@dataclass(frozen=True, kw_only=True)
class KindsConfig(CartpoleConfig):
    """Cart-pole with fields that it does not use."""

    weights: dict[str, float] = field(default_factory=lambda: {"upright": 1.0})
    ranges: dict[int, tuple[float, float]] = field(default_factory=lambda: {0: (0.0, 1.0)})
    table: Path = Path("table.csv")
    log: Path | None = None
    gaits: tuple[Gait, ...] = (Gait.WALK,)


TASKS = {
    "kinds": Task(summary="Kinds.", env=KindsConfig(), env_class="env:CartpoleEnv", agent=AGENT)
}
'''
IMPORTS = (
    "from dataclasses import dataclass, field\nfrom enum import Enum\nfrom pathlib import Path\n"
)
CHECK = """
    def setup(self) -> None:
        cfg = self.cfg
        assert (cfg.weights, cfg.ranges) == ({"upright": 2.0}, {0: (0.5, 1.0)}), cfg
        assert [*map(type, (cfg.table, cfg.log))] == [type(Path()), type(Path())], cfg
        assert [gait.name for gait in cfg.gaits] == ["TROT", "WALK"], cfg

    def reset_worlds("""


@pytest.mark.slow
def test_a_run_keeps_fields_of_all_kinds(run: Run, tmp_path: Path) -> None:
    task = shutil.copytree(BUNDLED, tmp_path / "tasks" / "kinds")
    config, env = task / "config.py", task / "env.py"
    config.write_text(f"{IMPORTS}{config.read_text()}{KINDS}")
    text = env.read_text().replace("\n    def reset_worlds(", CHECK)
    env.write_text(text.replace("import math\n", "import math\nfrom pathlib import Path\n"))
    flags = ("--env.weights.upright", "2", "--env.ranges.0", "0.5", "1", "--env.log", "log.csv")
    result = run(
        "train", "kinds", *SIX, *flags, "--env.gaits", "TROT", "WALK", "--cpu-workers", "2"
    )
    assert result.returncode == 0, result.stderr
    run_dir = only_run(tmp_path, "kinds")
    for command in (
        ("train", "kinds", "--resume", str(run_dir), "--agent.max-iterations", "7"),
        ("play", "kinds", "--resume", "latest", "--episodes", "2"),
        ("mjfleet", "export", "latest", "--format", "torchscript"),
        ("mjfleet", "report", "latest"),
    ):
        result = run(*command)
        assert result.returncode == 0, result.stderr
    assert "weights.upright" in (run_dir / "report.html").read_text()
