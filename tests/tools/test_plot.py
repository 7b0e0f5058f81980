"""`mjfleet plot`: curves of real runs, and what a user may get wrong."""

import shutil
from pathlib import Path

import pytest
from matplotlib import image

from ..conftest import Run, only_run

SHORT = (
    "--env.num-envs", "16", "--env.episode-seconds", "1", "--agent.max-iterations", "6",
    "--eval-interval", "3", "--eval-envs", "2",
)  # fmt: skip


@pytest.fixture
def trained(run: Run, tmp_path: Path) -> list[str]:
    """Two run directories that differ in their seed alone, then one of another agent."""
    assert run("train", "cartpole-balance", *SHORT).returncode == 0
    first = only_run(tmp_path)
    seeds, gammas = ("\n  seed: 1\n", "\n  seed: 2\n"), ("gamma: 0.95", "gamma: 0.9")
    for name, (old, new) in (("b", seeds), ("c", gammas)):
        other = shutil.copytree(first, first.with_name(name))
        text = (other / "config.yaml").read_text()
        assert text.count(old) == 1
        (other / "config.yaml").write_text(text.replace(old, new))
    return [str(first), str(first.with_name("b")), str(first.with_name("c"))]


def test_runs_become_pictures(run: Run, tmp_path: Path, trained: list[str]) -> None:
    one = run("mjfleet", "plot", trained[0])
    assert one.returncode == 0, one.stderr
    pixels = image.imread(f"{trained[0]}/plots/curves.png")
    assert pixels.shape[0] > 500
    assert pixels.std() > 0.05  # Something is drawn.

    columns = ("mean_reward", "mean_return", "loss/")
    both = ("--x", "minutes", "--columns", *columns, "--output", "curves.svg")
    assert run("mjfleet", "plot", *trained, *both).returncode == 0
    drawn = (tmp_path / "curves.svg").read_text()
    texts = ("mean_reward", "loss/value", "loss/entropy", "minutes")
    assert all(f"<!-- {text} -->" in drawn for text in texts)
    assert "<!-- mean_return (dots: eval/return) -->" in drawn
    assert "mean_episode_length" not in drawn
    # Two seeds are one entry of the legend, which names what differs.
    entries = [line for line in drawn.splitlines() if "<!-- gamma" in line]
    assert [line.strip() for line in entries] == ["<!-- gamma 0.95 -->", "<!-- gamma 0.9 -->"]
    assert f"<!-- {Path(trained[0]).name} -->" not in drawn

    # Mistakes are answered, and nothing is written.
    before = sorted(tmp_path.rglob("*"))
    for arguments, said in (
        ([], "run directory"),
        (["nowhere"], "nowhere does not exist"),
        ([trained[0], "--output", "curves.jpeg"], ".png, .svg, .pdf"),
        ([trained[0], "--columns", "mean_retrun"], "mean_return"),
        ([trained[0], "--x", "hours"], "steps"),
    ):
        result = run("mjfleet", "plot", *arguments)
        assert result.returncode == 2
        assert said in result.stderr + result.stdout
        assert "Traceback" not in result.stderr
    assert sorted(tmp_path.rglob("*")) == before
