"""A new run begins with the networks of another, and with nothing else of it."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from mjfleet.cli.train import train
from mjfleet.errors import UserError
from mjfleet.runs.checkpoint_names import INIT

from ..conftest import Run, rows

TASK, OTHER = "cartpole-balance", "cartpole-swingup"
SMALL = (
    *("--env.num-envs", "16", "--env.episode-seconds", "1", "--agent.num-steps-per-env", "8"),
    *("--agent.max-iterations", "2", "--plain"),
)
STILL = ("--agent.algorithm.schedule", "fixed", "--agent.algorithm.learning-rate", "1e-12")


@pytest.fixture
def base(run: Run, tmp_path: Path) -> Path:
    """A run whose policy normalises what it observes."""
    flags = ("--agent.actor.obs-normalization", "--agent.run-name", "base")
    assert run("train", TASK, *SMALL, *flags).returncode == 0
    return next(tmp_path.glob("logs/*/*_base"))


def networks(checkpoint: Path) -> dict[str, dict[str, torch.Tensor]]:
    state = torch.load(checkpoint, weights_only=True)
    return {name: state[f"{name}_state_dict"] for name in ("actor", "critic")}


def test_another_task_begins_with_networks_that_fit_and_later_goes_on_by_itself(
    base: Path, run: Run, tmp_path: Path
) -> None:
    flags = (*SMALL, *STILL, "--agent.actor.obs-normalization", "--agent.critic.hidden-dims", "8")
    workers = ("--cpu-workers", "2", "--agent.run-name", "tuned")
    done = run("train", OTHER, *flags, *workers, "--init-from", "base")
    assert done.returncode == 0, done.stderr
    assert "critic: begins anew, since --agent.critic.hidden-dims is" in done.stdout
    (tuned,) = tmp_path.glob("logs/*/*_tuned")
    origin = json.loads((tuned / "run.json").read_text())["init_from"]
    name, file = f"{TASK}/{base.name}", base / "checkpoints/model_2.pt"
    assert origin == {"run": name, "checkpoint": str(file), "iteration": 2}
    (listed, other) = json.loads(run("mjfleet", "runs", "--json").stdout)
    assert listed["init_from"] == f"{name} at iteration 2"
    assert listed["parent"] is other["init_from"] is None
    assert [int(row["iteration"]) for row in rows(tuned)] == [1, 2]
    assert float(rows(tuned)[0]["total_steps"]) == 2 * 16 * 8

    # All but the normaliser's statistics is as it was, since the learning rate is almost zero.
    theirs, ours = networks(file)["actor"], networks(tuned / "checkpoints/model_2.pt")["actor"]
    for key, value in theirs.items():
        if "normalizer" not in key:
            torch.testing.assert_close(ours[key], value, rtol=0, atol=1e-6)
    count = "obs_normalizer.count"
    assert ours[count] == theirs[count] + 2 * (2 * 16 * 8)

    # It needs the other run no more, and begins with the same networks where it has to begin again.
    shutil.rmtree(base)
    resume = ("train", OTHER, "--resume", "tuned", "--cpu-workers", "1", "--agent.max-iterations")
    assert run(*resume, "3").returncode == 0
    assert [int(row["iteration"]) for row in rows(tuned)] == [1, 2, 3]
    for path in (tuned / "checkpoints").glob("*.pt"):
        if path.name != INIT:
            path.unlink()
    done = run(*resume, "1")
    assert "actor: taken" in done.stdout, done.stderr
    again = networks(tuned / "checkpoints/model_1.pt")["actor"]
    assert again[count] == theirs[count] + 16 * 8
    with pytest.raises(UserError, match="is what the run began with"):
        train([OTHER, "--resume", str(tuned / "checkpoints" / INIT)])


def test_what_does_not_fit_is_named_and_nothing_is_made(
    base: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    normalised = "--agent.actor.obs-normalization"
    for flags, words in (
        ((), r"--agent\.actor\.obs-normalization is True there, False here"),
        ((normalised, "--agent.obs-groups.actor", "actor", "critic"),
         r"it observes actor \(5\) there, actor \(5\) and critic \(5\) here"),
        ((normalised, "--agent.actor.activation", "relu"), "activation is elu there, relu here"),
        ((normalised, "--resume", "latest"), "--resume and --init-from: give one"),
        ((normalised, "--agent.actor.distribution.init-std", "0.5"), "init-std and --init-from"),
        ((normalised, "--init-from", "nobody"), "--init-from nobody does not exist"),
        ((normalised, "--init-from", f"{base}/run.json"), "damaged or no checkpoint"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            train([OTHER, *SMALL, "--init-from", "base", *flags])

    # A file that does not tell of its networks, as rsl_rl's, is looked at by the workers.
    bare = tmp_path / "bare.pt"
    torch.save(torch.load(base / "checkpoints/model_2.pt", weights_only=True), bare)
    done = run("train", OTHER, *SMALL, "--init-from", "bare.pt")
    assert done.returncode == 2, done.stderr
    assert "obs_normalizer._mean is [1, 5] there, None here" in done.stderr
    assert [path.name for path in (tmp_path / "logs").iterdir()] == [TASK]
    assert [path.name for path in (tmp_path / "logs" / TASK).iterdir()] == [base.name]


def test_somebody_elses_configuration_does_not_name_a_file_to_begin_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.yaml").write_text("init_from: /somewhere/model_1.pt\n")
    assert train([TASK, "--config", "theirs.yaml", "--dry-run"]) == 0
    assert "left out init_from" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"--init-from /somewhere/model_1\.pt does not exist"):
        train([TASK, "--config", "theirs.yaml", "--dry-run", "--trust"])
