"""The documentation does what it says: its task trains, its flags exist."""

import re
from pathlib import Path

from .conftest import REPOSITORY, Run

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z.-]*[a-z](?!\.\*|[a-z-])")
OTHERS = {
    "--figures", "--help", "--kills", "--logdir", "--log-dir", "--nproc-per-node", "--output",
    "--shm-size", "--signal", "--ulimit",
}  # fmt: skip
"""Flags of other programs, and of every program."""


def test_the_task_of_the_guide_trains_as_it_is_written(run: Run, tmp_path: Path) -> None:
    guide = (REPOSITORY / "docs/tasks.md").read_text()
    files = re.findall(r"`(tasks/pendulum/\S+)`.*?```\w+\n(.*?)```", guide, flags=re.DOTALL)
    assert len(files) == 3
    for name, text in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    listed = run("main", "tasks")
    assert "Swing a pendulum up with a motor too weak" in listed.stdout
    assert run("train", "pendulum-swingup", "--dry-run").returncode == 0
    for engine in ("native", "warp"):
        result = run("train", "pendulum-swingup", "--engine", engine, "--agent.max-iterations", "3")
        assert result.returncode == 0, result.stderr
        assert "reward/upright=" in result.stdout


def test_every_flag_in_the_documentation_exists(run: Run) -> None:
    known = set(FLAG.findall(run("train", "cartpole-balance", "--help").stdout)) | OTHERS
    known |= set(FLAG.findall(run("main", "doctor", "--help").stdout))
    known |= set(FLAG.findall(run("play", "cartpole-balance", "--help").stdout))
    for what in ("throughput", "scaling", "startup", "peer mjlab", "learning", "report"):
        known |= set(FLAG.findall(run("main", "bench", *what.split(), "--help").stdout))
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    assert len(pages) > 3
    for page in pages:
        unknown = set(FLAG.findall(page.read_text())) - known
        assert not unknown, (page, unknown)


def test_links_between_pages_lead_somewhere() -> None:
    for page in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)
