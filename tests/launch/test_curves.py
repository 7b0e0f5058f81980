"""The picture that the end of a run leaves."""

import shutil
import tempfile
from pathlib import Path

import pytest
from matplotlib import image

from mjfleet.launch import planned_run
from mjfleet.launch.planned_run import draw_curves

from ..conftest import SMALL, Run, only_run


def test_a_run_leaves_its_curves_and_does_well_without(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten = run("train", "cartpole-balance", *SMALL, "--agent.max-iterations", "10")
    folder = only_run(tmp_path)
    assert (ten.returncode, ten.stderr) == (0, "")
    shown = folder.relative_to(tmp_path)
    end = [f"wrote {shown}/plots/curves.png", f"run directory: {shown}"]
    assert ten.stdout.splitlines()[-2:] == end
    assert image.imread(folder / "plots/curves.png").std() > 0.05

    shutil.rmtree(folder / "plots")
    (folder / "plots").touch()
    draw_curves(folder)
    assert "the run's curves were not drawn (`mjfleet plot`" in caplog.text

    # Drawing that takes too long is given up.
    monkeypatch.setattr(planned_run, "DRAW_SECONDS", 0.0)
    draw_curves(folder)
    assert "it takes longer than 0 s" in caplog.text

    # So is drawing for which there is no room.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    draw_curves(folder)
    assert "No such file or directory" in caplog.records[-1].getMessage()
