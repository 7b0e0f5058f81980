"""mjbatch's part with a stand-in that steps by MuJoCo's own batch: its pin of MuJoCo is another."""

import sys
import textwrap
from pathlib import Path

import mujoco
import pytest

from mjfleet.bench.mjbatch import write_equal_model
from mjfleet.registry import bundled_tasks

from ..conftest import Run
from .tiny import measured

STAND_INS = {
    "mjbatch-0.1.4.dist-info/METADATA": "Name: mjbatch\nVersion: 0.1.4\n",
    "mjbatch.py": """
        from mujoco import batch

        class Batch(batch.Batch):
            def __init__(self, model, num_sims, num_threads=0):
                super().__init__(model, nsim=num_sims, nthread=num_threads)
    """,
}
EXAMPLE = """
    import mujoco
    import numpy as np
    import torch
    from helper import CART
    from mjbatch import Batch

    NUM_ENVS, HORIZON, DECIMATION, EPOCHS, MINIBATCHES = 4, 3, 7, 2, 2
    SEED, LR, ACTOR, DEVICE = 0, 1e-3, "cpu", "cpu"

    def build_model():
        return mujoco.MjModel.from_xml_string(CART)

    class Go1:
        def __init__(self, num_envs, seed):
            self.batch = Batch(build_model(), num_envs)
            self.qpos, self.ctrl = self.batch.bind("qpos"), self.batch.bind("ctrl")

    class ActorCritic(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layers = torch.nn.Linear(1, 8), torch.nn.ELU(), torch.nn.Linear(8, 1)
            self.actor = torch.nn.Sequential(*layers)

    @torch.no_grad()
    def rollout(actor, env):
        seen = []
        for _ in range(HORIZON):
            seen.append(torch.as_tensor(env.qpos.copy(), dtype=torch.float32))
            env.ctrl[:] = actor.actor(seen[-1]).numpy()
            env.batch.step(nstep=DECIMATION)
        return torch.cat(seen), {}

    def gae(batch):
        return batch, batch

    def update(net, opt, batch, adv, ret):
        for _ in range(EPOCHS * MINIBATCHES):
            loss = (net.actor(batch) - ret).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
"""
CART = """
    CART = '''<mujoco>
      <option timestep="0.003" solver="PGS" iterations="10"/>
      <worldbody><body><joint name="slide" type="slide"/><geom size="0.1"/></body></worldbody>
      <actuator><motor joint="slide"/></actuator>
    </mujoco>'''
"""


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of mjbatch that has been made before."""
    cache = tmp_path_factory.mktemp("cache")
    write(cache / "packages", STAND_INS)
    python = cache / "mjfleet/bench/mjbatch-0.1.4/bin/python"
    write(
        python.parent,
        {"python": f'#!/bin/sh\nPYTHONPATH={cache}/packages exec {sys.executable} "$@"\n'},
    )
    python.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_both_step_one_model_and_train_in_equal_sizes(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "examples", {"go1_joystick.py": EXAMPLE, "helper.py": CART})
    flags = ("--example", "examples/go1_joystick.py", "--num-envs", "8")
    data = measured(run, tmp_path, "peer", "mjbatch", *flags)
    own, equal, training = data["samples"]
    assert [sample["num_envs"] for sample in (own, equal, training)] == [8, 4, 4]
    bare, trained = data["tables"]
    for row, sample in zip(bare["rows"], (own, equal), strict=True):
        speeds = [sample[who]["steps_per_second"] for who in ("mjfleet", "mjbatch")]
        assert [cell["median"] for cell in row[1:]] == [*speeds, speeds[0] / speeds[1]]
    ours, theirs = (training[who]["iterations"] for who in ("mjfleet", "mjbatch"))
    assert [row["total_steps"] for row in ours] == [12.0, 24.0, 36.0]
    assert [row["iteration"] for row in theirs] == [1, 2, 3]
    speeds = {row[0]: [cell["median"] for cell in row[1:]] for row in trained["rows"]}
    assert list(speeds) == ["end to end", "collecting", "learning"]
    for part, figure in (("collecting", "collect_seconds"), ("learning", "learn_seconds")):
        assert speeds[part][:2] == [12 / training[w][figure] for w in ("mjfleet", "mjbatch")]
    assert data["versions"]["mjbatch"] == "0.1.4"


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_another_file_than_the_example_is_refused(run: Run, tmp_path: Path) -> None:
    write(tmp_path, {"other.py": "NUM_ENVS = 3\n"})
    result = run("mjfleet", "bench", "peer", "mjbatch", "--example", "other.py")
    assert result.returncode == 2
    assert "it lacks HORIZON, DECIMATION" in result.stderr
    assert not (tmp_path / "benchmarks").exists()


@pytest.mark.slow
def test_a_task_without_an_mjcf_of_its_own_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("mjfleet", "bench", "peer", "mjbatch", "go1-velocity-rough")
    assert result.returncode == 2
    assert "makes its model in code" in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_equal_model_has_the_physics_and_only_feet_collide(tmp_path: Path) -> None:
    source, target = bundled_tasks() / "go1/go1.xml", tmp_path / "model.xml"
    write_equal_model(source, {"timestep": "0.004", "solver": "PGS", "iterations": "7"}, target)
    model, before = (mujoco.MjModel.from_xml_path(str(path)) for path in (target, source))
    assert (model.opt.timestep, model.opt.iterations) == (0.004, 7)
    assert model.opt.solver == mujoco.mjtSolver.mjSOL_PGS
    colliding = {
        model.geom(i).name
        for i in range(model.ngeom)
        if model.geom_contype[i] or model.geom_conaffinity[i]
    }
    assert colliding == {"floor", *(f"{leg}_foot" for leg in ("FR", "FL", "RR", "RL"))}
    assert (model.body_mass == before.body_mass).all()
    assert (model.key_qpos == before.key_qpos).all()
