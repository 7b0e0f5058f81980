"""A new run begins with the networks of another, and with nothing else of it."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import mjfleet
from mjfleet.cli.train import train
from mjfleet.errors import UserError
from mjfleet.runs.checkpoints import INIT
from mjfleet.runs.run_json import read_record

from ..conftest import SMALL, TESTS, Run, rows

TASK, OTHER = "cartpole-balance", "cartpole-swingup"
TWO = (*SMALL, "--agent.max-iterations", "2", "--plain")
STILL = ("--agent.algorithm.schedule", "fixed", "--agent.algorithm.learning-rate", "1e-12")


def networks(checkpoint: Path) -> dict[str, dict[str, torch.Tensor]]:
    state = torch.load(checkpoint, weights_only=True)
    return {name: state[f"{name}_state_dict"] for name in ("actor", "critic")}


def test_iterate_begins_with_the_networks_that_the_configuration_names() -> None:
    still = {"algorithm": {"schedule": "fixed", "learning_rate": 1e-12}, "max_iterations": 1}
    settings = {"agent": still, "env": {"num_envs": 8}, "gpu_ids": None}
    base = TESTS / "data/cartpole-balance-9159368"
    (iteration,) = mjfleet.iterate(TASK, config={"init_from": str(base)}, **settings)
    theirs = networks(base / "checkpoints/model_3.pt")["actor"]
    ours = iteration.runner.alg.actor.state_dict()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert iteration.metrics["total_steps"] == 8 * 32
    with pytest.raises(UserError, match="--init-from nowhere does not exist"):
        next(mjfleet.iterate(TASK, init_from="nowhere", **settings))


@pytest.mark.slow
def test_another_task_begins_with_networks_that_fit_and_later_goes_on_by_itself(
    run: Run, tmp_path: Path
) -> None:
    normalised = "--agent.actor.obs-normalization"
    assert run("train", TASK, *TWO, normalised, "--agent.run-name", "base").returncode == 0
    (base,) = tmp_path.glob("logs/*/*_base")
    flags = (*TWO, *STILL, "--agent.critic.hidden-dims", "8", "--init-from", "base")

    # What does not fit is named, and nothing is made.
    wrong = ("--agent.actor.activation", "relu", "--agent.obs-groups.actor", "actor", "critic")
    done = run("train", OTHER, *flags, *wrong)
    assert done.returncode == 2, done.stderr
    for words in (
        "--agent.actor.obs-normalization is True there, False here",
        "--agent.actor.activation is elu there, relu here",
        "what it observes is {'actor': [5]} there, {'actor': [5], 'critic': [5]} here",
    ):
        assert words in done.stderr
    assert [path.name for path in tmp_path.glob("logs/*/*")] == [base.name]

    workers = ("--cpu-workers", "2", "--agent.run-name", "tuned")
    done = run("train", OTHER, *flags, normalised, *workers)
    assert done.returncode == 0, done.stderr
    assert "critic: begins anew, since --agent.critic.hidden-dims is" in done.stdout
    (tuned,) = tmp_path.glob("logs/*/*_tuned")
    parent = json.loads((tuned / "run.json").read_text())["parent"]
    file = base / "checkpoints/model_2.pt"
    name = f"{TASK}/{base.name}"
    origin = {"run": name, "checkpoint": str(file), "iteration": 2, "networks_only": True}
    assert parent.pop("typed") in ("base", str(base), base.name)
    assert parent == origin | {"changed": {}, "id": read_record(base)["id"]}
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


def test_what_cannot_be_begun_with_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/run.json").write_text(json.dumps({"task": OTHER}))
    (tmp_path / "run/config.yaml").write_text("{}")
    (tmp_path / "run/checkpoints" / INIT).touch()
    for flags, words in (
        (("--init-from", "run"), "has no checkpoint yet"),
        (("--init-from", "run", "--resume", "latest"), "--init-from and --resume: give one"),
        (("--init-from", "run", "--agent.actor.distribution.init-std", "1"), "init-std and --init"),
        (("--init-from", "nobody"), "--init-from nobody does not exist"),
        (("--init-from", "nobody", "--seeds", "2"), "--init-from nobody does not exist"),
        (("--init-from", "run/run.json"), "damaged or no checkpoint"),
        (("--resume", f"run/checkpoints/{INIT}"), "is what the run began with"),
    ):
        with pytest.raises(UserError, match=words):
            train([OTHER, *TWO, *flags])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
