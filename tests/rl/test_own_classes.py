"""Networks, algorithms and hooks that a task names, and rsl_rl's network for images."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rsl_rl import algorithms

from mjfleet.config import AgentConfig, from_dict
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask, find_task
from mjfleet.rl.algorithm import Algorithm
from mjfleet.rl.build_algorithm import choose_algorithm
from mjfleet.rl.ppo import PPO
from mjfleet.runs.config_yaml import from_file
from mjfleet.runs.own_runs import Note

from ..conftest import REPOSITORY, SMALL, Output, Run, copy_task, only_run, rows

PAGE = (REPOSITORY / "docs" / "networks.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
NETS, LEARNER, PENALTY, PENALTY_CONFIG, TD3, IMAGE_AGENT = PYTHON
MORE = '''

from mjfleet.rl.ppo import ppo
from rsl_rl.models import CNNModel, RNNModel
from rsl_rl.modules import distribution


class Batched(MLPModel):
    """A layer that remembers what it saw, and a buffer of bytes."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.mlp.insert(1, torch.nn.BatchNorm1d(self.mlp[0].out_features))
        self.register_buffer("mask", torch.tensor([True, False, True]))


class Fast(ppo.PPO):
    pass


class Pulled(ppo.PPO):
    def update(self) -> dict[str, float]:
        return {**super().update(), "pull": self.config.pull}


class Named(PPO):
    def __init__(self, *parts: Any, pull: float, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self.pull = pull

    def update(self) -> dict[str, float]:
        return {**super().update(), "pull": self.pull}


class Betas(MLPModel):
    """A network with a Beta distribution."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        beta = {"class_name": distribution.BetaDistribution}
        super().__init__(*args, **settings | {"distribution_cfg": beta})


class Remembering(RNNModel):
    pass


class Deeper(CNNModel):
    """A network for images with a layer more."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.mlp.insert(1, torch.nn.LayerNorm(self.mlp[0].out_features))


number = 3
'''
CAMERA = '''
from .env import *


class CameraEnv(CartpoleEnv):
    """The position of cart and pole is seen alone."""

    def observe(self) -> dict[str, torch.Tensor]:
        pixels = torch.linspace(-0.3, 0.3, 9, device=self.device)
        cart, angle = (
            torch.exp(-((part - pixels) / 0.05).square()) for part in self.sim.qpos.split(1, dim=1)
        )
        image = (cart.unsqueeze(1) * angle.unsqueeze(2)).unsqueeze(1)
        groups = super().observe() | {"actor": self.sim.qvel.clone(), "camera": image}
        return groups

    def deployment(self) -> dict[str, Any]:
        return {}
'''
FAST = ("--agent.algorithm.num-learning-epochs", "2", "--agent.save-interval", "1", "--plain")
FEW = ("--env.num-envs", "2", "--episodes", "2")
ALONE = ("--cpu-workers", "1")
OWN = (
    *("--agent.actor.class-name", "nets:Residual", "--agent.critic.class-name", "nets:Batched"),
    *("--agent.algorithm.name", "nets:Decaying", "--agent.runner-hook", "nets:Stages"),
)


@pytest.fixture
def pole(tmp_path: Path) -> FoundTask:
    """A task with the code of the documentation beside it."""
    folder = copy_task(tmp_path / "tasks", "pole")
    (folder / "nets.py").write_text(NETS + MORE)
    (folder / "camera.py").write_text(CAMERA)
    names = "ActorConfig, AgentConfig, CnnConfig, CriticConfig, EnvConfig, ObsGroups, PPOConfig"
    config = (folder / "config.py").read_text()
    config += f"\nfrom mjfleet.config import {names}\n{IMAGE_AGENT}\n"
    config += """
SEEN = {"actor": 2, "critic": 5, "camera": (1, 9, 9)}
TASKS["pole-camera"] = Task(
    summary="", env=CartpoleConfig(), env_class="camera:CameraEnv", agent=AGENT,
    observation_sizes=SEEN,
)
"""
    (folder / "config.py").write_text(config.replace("EnvConfig, ObsGroups", "ObsGroups"))
    return find_task("pole-balance", folder)


def train(output: Output, task: str, iterations: int, *more: str) -> str:
    return output("train", task, *SMALL, *FAST, "--agent.max-iterations", str(iterations), *more)


@pytest.mark.usefixtures("pole")
def test_classes_of_a_task_train_resume_play_and_are_exported(
    output: Output, run: Run, tmp_path: Path
) -> None:
    said = train(output, "pole-balance", 2, "--cpu-workers", "2", *OWN)
    assert "slower" in said
    run_dir = only_run(tmp_path, "pole-balance")
    assert "continues in place" in train(output, "pole-balance", 3, "--resume", "latest", *ALONE)
    written = rows(run_dir)
    assert [row["iteration"] for row in written] == ["1", "2", "3"]
    assert float(written[0]["loss/entropy_coef"]) == pytest.approx(0.005 * 0.99)
    assert {"model_1.txt", "model_2.txt", "model_3.txt"} <= {
        path.name for path in (run_dir / "checkpoints").iterdir()
    }
    state = torch.load(run_dir / "checkpoints/model_3.pt", weights_only=True)
    assert "around.weight" in state["actor_state_dict"]
    output("play", "pole-balance", "--resume", "latest", *FEW)
    output("mjfleet", "export", "latest")
    refused = run("mjfleet", "export", "latest", "--format", "torchscript")
    assert (refused.returncode, "as_jit()" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "value", ["Net", "nets", "nets:", ":Net", "a b:Net", "../nets:Net", "a:b:c"]
)
def test_what_is_no_class_path_is_refused(value: str) -> None:
    for data in ({"actor": {"class_name": value}}, {"algorithm": {"name": value}}):
        with pytest.raises(UserError, match=r"`module:Class`"):
            from_dict(AgentConfig(), data)


@pytest.mark.parametrize(
    ("kind", "agent"),
    [
        (PPO, {"actor": {"class_name": "nets:Batched"}}),
        (PPO, {"actor": {"class_name": "rsl_rl.models:MLPModel"}}),
        (PPO, {"actor": {"class_name": "nets:Deeper"}}),
        (Algorithm, {"critic": {"class_name": "nets:Residual"}}),
        (algorithms.PPO, {"algorithm": {"name": "nets:Decaying"}}),
        (PPO, {"algorithm": {"name": "nets:Fast"}}),
        (
            "subclass of",
            {"algorithm": {"name": "nets:Fast"}, "actor": {"class_name": "nets:Residual"}},
        ),
        ("subclass of", {"actor": {"class_name": "nets:number"}}),
        ("subclass of", {"actor": {"class_name": "json:JSONDecoder"}}),
        ("No module named 'nope'", {"actor": {"class_name": "nope:Net"}}),
    ],
)
def test_our_ppo_trains_what_has_rsl_rls_forward_pass(
    kind: Any, agent: dict[str, Any], pole: FoundTask
) -> None:
    config = from_dict(pole.task.agent, agent)
    if isinstance(kind, str):
        with pytest.raises(UserError, match=kind):
            choose_algorithm(config, pole.load)
    else:
        assert issubclass(choose_algorithm(config, pole.load)[0], kind)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "nets:Fast"])
@pytest.mark.usefixtures("pole")
def test_a_distribution_that_is_no_gaussian_learns_and_is_played(
    algorithm: str, output: Output, tmp_path: Path
) -> None:
    betas = ("--agent.actor.class-name", "nets:Betas", "--agent.algorithm.name", algorithm)
    train(output, "pole-balance", 2, *betas)
    run_dir = only_run(tmp_path, "pole-balance")
    # That of a Beta distribution on [-1, 1] with a single peak is less than a uniform one's.
    assert all(0 < float(row["action_std"]) < 0.58 for row in rows(run_dir))
    output("play", "pole-balance", "--resume", "latest", *FEW)


MORE_FIELDS = """
from dataclasses import dataclass, replace
from mjfleet.config import ActorConfig


@dataclass(frozen=True, kw_only=True)
class PullConfig(PPOConfig):
    pull: float = 0.5


@dataclass(frozen=True, kw_only=True)
class DeepConfig(ActorConfig):
    depth: int = 3


OLD = TASKS["pole-balance"]
PULL = replace(OLD.agent, algorithm=PullConfig(), actor=DeepConfig())
TASKS["pole-balance"] = replace(OLD, agent=PULL)
"""


def test_fields_of_ones_own_reach_ones_own_class_alone(
    pole: FoundTask, output: Output, tmp_path: Path
) -> None:
    train(output, "pole-balance", 1, "--run-dir", "old")
    with (pole.folder / "config.py").open("a") as file:
        file.write(MORE_FIELDS)
    output("play", "pole-balance", "--resume", "old", *FEW)
    output("mjfleet", "export", "old", "--format", "torchscript")
    train(output, "pole-balance", 2, "--resume", "old")
    for name in ("Pulled", "Named"):
        flags = ("--agent.algorithm.name", f"nets:{name}", "--agent.algorithm.pull", "0.25")
        train(output, "pole-balance", 1, *flags, "--run-dir", name)
        assert [row["loss/pull"] for row in rows(tmp_path / name)] == ["0.25"]


def test_a_file_names_classes_of_the_task_and_those_of_a_run_begun_here(pole: FoundTask) -> None:
    own, other = ({"agent": {"actor": {"class_name": f"{m}:Residual"}}} for m in ("nets", "there"))
    assert from_file(pole, own, "file").agent.actor.class_name == "nets:Residual"
    with pytest.raises(UserError, match=r"--agent\.actor\.class-name=there:Residual"):
        from_file(pole, other, "file")
    name = "agent.actor.class_name"
    assert from_file(pole, other, "file", None, name.__eq__) == pole.defaults()  # A flag sets it.
    note = Note("1", "run", [{name: "there:Residual"}], [])
    assert from_file(pole, other, "file", note).agent.actor.class_name == "there:Residual"


@pytest.mark.usefixtures("pole")
def test_workers_share_the_statistics_of_batch_normalisation(
    output: Output, tmp_path: Path
) -> None:
    batched = ("--agent.actor.class-name", "nets:Batched", "--agent.critic.class-name")
    train(output, "pole-balance", 2, *batched, "nets:Batched", "--cpu-workers", "2")
    (checkpoint,) = tmp_path.glob("logs/*/*/checkpoints/model_2.pt")
    seen = torch.load(checkpoint, weights_only=True)["actor_state_dict"]["mlp.1.running_var"]
    assert (seen != 1).all()


@pytest.mark.usefixtures("pole")
def test_images_are_seen_by_convolutions(output: Output, run: Run, tmp_path: Path) -> None:
    assert "slower" not in train(output, "pole-camera", 2, "--cpu-workers", "2")
    assert "continues in place" in train(output, "pole-camera", 3, "--resume", "latest")
    output("mjfleet", "export", "latest")
    for flags, words in (
        (("--agent.actor.class-name", "MLPModel"), "'camera'"),
        (("--agent.actor.cnn-cfg.kernel-size", "5", "4"), "Kernel size: (4 x 4)"),
    ):
        done = run("train", "pole-camera", *SMALL, *FAST, *flags, "--log-root", "other")
        assert (done.returncode, words in done.stderr) == (2, True)
        assert not list((tmp_path / "other").glob("*/*"))


@pytest.mark.usefixtures("pole")
def test_a_memory_of_ones_own_needs_an_environment_for_each_minibatch(
    run: Run, tmp_path: Path
) -> None:
    memory = ("--agent.actor.class-name", "nets:Remembering", "--agent.algorithm.num-mini-batches")
    done = run("train", "pole-balance", *SMALL, *FAST, *memory, "17")
    text = "num-mini-batches is 17, more than the 16 environments"
    assert (done.returncode, text in done.stderr) == (2, True), done.stderr
    assert not list(tmp_path.glob("logs/*/*"))


def test_a_network_for_images_needs_its_layers(pole: FoundTask) -> None:
    agent = pole.task.agent
    with pytest.raises(UserError, match="cnn_cfg"):
        replace(agent, actor=replace(agent.actor, class_name="CNNModel"))
    with pytest.raises(
        UserError, match=r"^--agent\.\(actor\|critic\)\.cnn-cfg\.stride .* for each"
    ):
        from_dict(agent, {"actor": {"cnn_cfg": {"output_channels": [4, 4], "stride": [1, 1, 1]}}})
