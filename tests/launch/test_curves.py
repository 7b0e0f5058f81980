"""The picture that the end of a run leaves."""

import json
import shutil
from pathlib import Path

from matplotlib import image

from ..conftest import Run, only_run

SHORT = ("--env.num-envs", "16", "--env.episode-seconds", "1", "--agent.num-steps-per-env", "8")


def test_a_run_leaves_its_curves_and_does_well_without(run: Run, tmp_path: Path) -> None:
    ten = run("train", "cartpole-balance", *SHORT, "--agent.max-iterations", "10")
    folder = only_run(tmp_path)
    assert (ten.returncode, ten.stderr) == (0, "")
    shown = folder.relative_to(tmp_path)
    end = [f"wrote {shown}/plots/curves.png", f"run directory: {shown}"]
    assert ten.stdout.splitlines()[-2:] == end
    assert image.imread(folder / "plots/curves.png").std() > 0.05

    shutil.rmtree(folder / "plots")
    (folder / "plots").touch()
    more = ("--resume", "latest", "--agent.max-iterations", "11")
    eleven = run("train", "cartpole-balance", *more)
    assert eleven.returncode == 0
    assert eleven.stderr.startswith("the run's curves were not drawn (`mjfleet plot`")
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    assert eleven.stdout.splitlines()[-1] == f"run directory: {shown}"
