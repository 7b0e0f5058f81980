"""Learners of the user's: the documented TD3, a table of numbers, and what is to be remembered."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mjfleet.config import AlgorithmConfig, PPOConfig
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask, discover, find_task
from mjfleet.runs.task_snapshot import read_code

from ..conftest import SMALL, Output, Run, copy_task, rows
from .test_own_classes import NETS, TD3

TABLE = '''
from typing import Any

import torch
from torch import nn

from mjfleet.rl.learner import Learner
from mjfleet.sim.deferred import Deferred


class Policy(nn.Module):
    """Acts by numbers, one for each action."""

    is_recurrent = obs_normalization = False

    def __init__(self, env: Any) -> None:
        super().__init__()
        self.obs_groups, self.obs_dim = ["actor"], env.get_observations()["actor"].shape[1]
        self.register_buffer("numbers", torch.zeros(env.num_actions, device=env.device))

    def forward(self, obs: Any) -> torch.Tensor:
        return self.numbers + 0 * obs["actor"][:, :1]

    def reset(self, dones: Any = None, hidden_state: Any = None) -> None:
        pass

    def get_hidden_state(self) -> None:
        return None


class Table(Learner):
    """Moves the numbers towards those of the better half of the environments."""

    learning_rate = 0.5

    def __init__(self, setup: Any) -> None:
        super().__init__(setup)
        self.policy = self.policy_of(setup.env, setup.agent, setup.load)
        self.rollout: list[Any] = []
        self.scratch("rollout")
        self.spread = self.add_state("spread", torch.ones((), device=self.device))

    @classmethod
    def policy_of(cls, env: Any, agent: Any, load: Any) -> Policy:
        return Policy(env)

    def networks(self) -> dict[str, nn.Module]:
        return {"actor": self.policy}

    def act(self, obs: Any) -> torch.Tensor:
        actions = self.policy(obs)
        return actions + self.spread * torch.randn_like(actions)

    def record(self, before: Any, actions: torch.Tensor, step: Any) -> None:
        self.rollout = [*self.rollout[1 - self.num_steps :], (before["actor"], actions, step)]

    def checked(self) -> dict[str, list[torch.Tensor]]:
        seen = [*(seen for seen, *_ in self.rollout), self.rollout[-1][2].observations["actor"]]
        columns = {
            "observation/actor": seen,
            "action": [actions for _, actions, _ in self.rollout],
            "reward": [step.rewards for *_, step in self.rollout],
            "done": [step.dones for *_, step in self.rollout],
        }
        return {name: [torch.stack(column)] for name, column in columns.items()}

    def learn(self) -> Deferred[dict[str, float]]:
        found = {name: parts[0] for name, parts in self.checked().items()}
        better = found["reward"] > found["reward"].mean()
        sums = torch.cat((found["action"][better].sum(dim=0), better.sum()[None]))
        self.collectives.all_reduce(sums)
        self.policy.numbers.lerp_(sums[:-1] / sums[-1].clamp(min=1), self.learning_rate)
        self.spread *= 0.9
        return Deferred(self.spread, lambda numbers: {"spread": numbers[0]})
'''
REMEMBERING = '''
import torch
from rsl_rl.models import MLPModel, RNNModel

from mjfleet.rl.ppo import PPO


class Batched(MLPModel):
    """A network with a layer that remembers what it saw."""

    def __init__(self, *parts, **settings):
        super().__init__(*parts, **settings)
        self.mlp.insert(1, torch.nn.BatchNorm1d(self.mlp[0].out_features))


class Averaged(PPO):
    """Keeps averages of the policy's weights: of all, as a network, and of their sum."""

    def __init__(self, *parts, **settings):
        super().__init__(*parts, **settings)
        self.sum = self.add_state("sum", torch.zeros((), device=self.device))

    def modules(self):
        ema = torch.nn.Linear(self.actor.mlp[0].in_features, self.actor.mlp[0].out_features)
        return {"ema": ema.requires_grad_(False)}

    def update(self):
        self.entropy_coef *= 0.9
        found = super().update()
        for mean, now in zip(self.extra["ema"].parameters(), self.actor.mlp[0].parameters()):
            mean.lerp_(now.detach(), 0.5)
        self.sum.lerp_(self.actor.mlp[0].weight.detach().sum(), 0.5)
        return {**found, "entropy_coef": self.entropy_coef}


class Counting(PPO):
    count = 0

    def update(self):
        self.count += 1
        return super().update()


class Counter(torch.nn.Module):
    """Counts in a number what passes through, and sums it up in a tensor that is no buffer."""

    calls = 0

    def __init__(self, sums):
        super().__init__()
        self.sums, self.total, self._newest = sums, torch.zeros(()), None

    def forward(self, rows):
        self._newest = rows
        if self.sums:
            self.total += rows.detach().sum()
        else:
            self.calls += 1
        return rows


class Calling(MLPModel):
    sums = False

    def __init__(self, *parts, **settings):
        super().__init__(*parts, **settings)
        self.mlp.insert(1, Counter(self.sums))


class Summing(Calling):
    sums = True


class Noting(RNNModel):
    """Notes its memory in an attribute of its own."""

    noted = None

    def get_hidden_state(self):
        self.noted = super().get_hidden_state()
        return self.noted


class Uneven(PPO):
    """Has another coefficient on each rank."""

    def __init__(self, *parts, **settings):
        super().__init__(*parts, **settings)
        self.add_state("weight", 1.0)

    def update(self):
        self.weight += self.collectives.rank
        return super().update()


class Filling(PPO):
    def __init__(self, *parts, **settings):
        super().__init__(*parts, **settings)
        self.kept = torch.zeros(3)

    def update(self):
        self.kept += 1
        return super().update()
'''
TASK = "cartpole-balance"
FAST = (*SMALL, "--agent.save-interval", "1", "--plain", "--agent.actor.hidden-dims", "16")
FEW = ("--env.num-envs", "2", "--episodes", "2")
OWN = ("--tasks-dir", "mine", "--agent.algorithm.name", "td3:TD3")
TAU = ("--agent.algorithm.tau", "1")
SHORT = ("--agent.algorithm.updates", "3", "--agent.algorithm.replay-steps", "12")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of tasks with learners, but no task."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "td3.py").write_text(TD3)
    (folder / "table.py").write_text(TABLE)
    return folder


def train(output: Output, run_dir: str, iterations: int, *more: str, task: str = TASK) -> str:
    length = ("--agent.max-iterations", str(iterations))
    return output("train", task, *FAST, *length, *more, "--run-dir", run_dir)


def state_of(folder: Path, iteration: int) -> dict[str, Any]:
    """Return all that is learned and remembered in a checkpoint and the files of its ranks."""
    place = folder / "checkpoints"
    state = torch.load(place / f"model_{iteration}.pt", weights_only=True)
    ranks = {path.name: torch.load(path, weights_only=True) for path in place.glob("rank*")}
    learned = {name: part for name, part in state.items() if name.endswith("_state_dict")}
    return {**learned, "run": state["mjfleet"]["learner"], **ranks}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def is_resumed(output: Output, folder: Path, *flags: str, task: str = TASK) -> dict[str, Any]:
    """Train, and again from the second iteration; return the state at the end, the same in both."""
    train(output, "run", 4, *flags, task=task)
    whole = state_of(folder / "run", 4)
    for path in (folder / "run/checkpoints").iterdir():  # As of a run that was killed.
        if not path.stem.endswith("_2"):
            path.unlink()
    shown = train(output, "run", 4, *flags, task=task)
    assert "continuing from run/checkpoints/model_2.pt" in shown
    assert same(whole, state_of(folder / "run", 4))
    return whole


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("workers", [1, 2])
def test_the_documented_algorithm_is_resumed_bit_for_bit_played_and_exported(
    workers: int, output: Output, tmp_path: Path
) -> None:
    evaluated = ("--eval-interval", "2", "--eval-envs", "4", "--cpu-workers", str(workers))
    # The replay is kept for the newest checkpoint alone: a run that was killed would lack it.
    for run_dir, iterations in (("whole", 4), ("run", 2), ("run", 4)):
        train(output, run_dir, iterations, *OWN, *SHORT, *evaluated)
    state = state_of(tmp_path / "run", 4)
    assert same(state_of(tmp_path / "whole", 4), state)
    rings = [state[f"rank{rank}_4.pt"]["ring"][1] for rank in range(workers)]
    assert all(ring.any(dim=2).all() for ring in rings)  # 32 steps, of which 12 are kept.
    assert all(not torch.equal(ring, rings[0]) for ring in rings[1:])
    last = rows(tmp_path / "run")[-1]
    assert {"loss/critic", "loss/actor"} < last.keys()
    assert float(last["eval/return"]) > 0
    output("play", "--resume", "run", *FEW)
    output("mjfleet", "export", "run")


@pytest.mark.usefixtures("mine")
def test_its_numbers_are_flags_of_any_task(output: Output, run: Run, tmp_path: Path) -> None:
    shown = output("train", "reacher-easy", *OWN, "--help")
    assert "Share of the critics that enters their targets" in shown
    assert "--agent.algorithm.clip-param" not in shown
    train(output, "run", 1, *OWN, *SHORT, *TAU)
    state = state_of(tmp_path / "run", 1)
    assert same(state["critics_state_dict"], state["targets_state_dict"])
    for flags, words in (
        (TAU, "no flag --agent.algorithm.tau with --agent.algorithm.name ppo."),
        ((*OWN, "--agent.algorithm.clip-param", "1"), "clip-param with --agent.algorithm.name td3"),
        ((*OWN, "--agent.algorithm.clip-param", "1"), "one with --agent.algorithm.name ppo."),
        ((*OWN, TAU[0], "2"), "tau is 2.0; it must be between 0 and 1"),
        ((*OWN[:3], "td3:Nothing", *TAU), "has no `Nothing`"),
    ):
        done = run("train", TASK, *flags, "--run-dir", "other")
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
        assert not (tmp_path / "other").exists()


@pytest.mark.usefixtures("mine")
def test_a_file_may_have_fields_of_other_algorithms(output: Output, tmp_path: Path) -> None:
    both = {"agent": {"algorithm": {"gamma": 0.9, "tau": 0.5, "clip_param": 0.1}}}
    (tmp_path / "both.yaml").write_text(yaml.safe_dump(both))
    dry = ("--cpu-workers", "1", *SHORT)
    train(output, "run", 1, *OWN, *dry, "--config", "both.yaml")
    found = yaml.safe_load((tmp_path / "run/config.yaml").read_text())["agent"]["algorithm"]
    assert found.keys() == {
        *("name", "replay_steps", "updates", "batch_size", "learning_rate", "gamma", "tau"),
        "exploration",
    }
    assert (found["gamma"], found["tau"]) == (0.9, 0.5)
    # PPO, which is typed, takes of a file of TD3's what it knows itself.
    length = ("--agent.max-iterations", "1", "--cpu-workers", "1")
    ppo = ("--config", "run/config.yaml", "--agent.algorithm.name", "ppo")
    output("train", TASK, *FAST, *length, *ppo, "--run-dir", "ppo")
    found = yaml.safe_load((tmp_path / "ppo/config.yaml").read_text())["agent"]["algorithm"]
    assert (found["gamma"], found["clip_param"], "tau" in found) == (0.9, 0.2, False)


PROGRAM = """
import mjfleet
scope = {"__name__": "td3"}
exec(open("mine/td3.py").read(), scope)
agent = {"algorithm": scope["TD3Config"](updates=1, gamma=0.5), "max_iterations": 1}
agent["num_steps_per_env"] = 4
settings = {"tasks_dir": "mine", "gpu_ids": None, "env": {"num_envs": 4}, "run_dir": "run"}
mjfleet.train("cartpole-balance", agent=agent, **settings)
"""


@pytest.mark.usefixtures("mine")
def test_a_configuration_in_python_chooses_the_algorithm(output: Output, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    output("python", "program.py")
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (config["agent"]["algorithm"]["gamma"], "lam" in config["agent"]) == (0.5, False)


def found_task(folder: Path) -> FoundTask:
    return discover({}, str(folder)).find(TASK)


def test_a_derived_configuration_begins_with_what_the_task_has_set(mine: Path) -> None:
    (mine / "more.py").write_text(
        "from dataclasses import dataclass, field\n"
        "from mjfleet.config import PPOConfig\n"
        "@dataclass(frozen=True)\n"
        "class Table:\n    rows: dict = field(default_factory=dict)\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class MoreConfig(PPOConfig):\n    more: int = 1\n    schedule: str = 'fixed'\n"
        "    table: Table = Table()\n"
        "class More:\n    Config = MoreConfig\n"
        "class Wrong:\n    Config = int\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class LackingConfig(PPOConfig):\n    lacks: int\n"
        "class Lacking:\n    Config = LackingConfig\n"
    )
    found = found_task(mine)
    more: Any = found.defaults("more:More").agent.algorithm
    # The task sets gamma, and the class another schedule.
    assert (more.gamma, more.schedule, more.more) == (0.95, "fixed", 1)
    assert type(found.defaults("td3:TD3").agent.algorithm).__name__ == "TD3Config"
    back = found.with_algorithm(found.defaults("td3:TD3"), "ppo").agent.algorithm
    assert back == PPOConfig()
    assert isinstance(back, AlgorithmConfig)
    for name, words in (("Wrong", "must be a subclass"), ("Lacking", "lacks needs a default")):
        with pytest.raises(UserError, match=words):
            found.defaults(f"more:{name}")


def test_its_module_is_in_the_runs_copy_of_the_code_and_in_the_message_about_changes(
    mine: Path, output: Output, tmp_path: Path
) -> None:
    few = (*OWN, *SHORT, "--cpu-workers", "1")
    train(output, "run", 1, *few)
    (copy,) = (tmp_path / "run/task").iterdir()
    assert (copy / "td3.py").read_text() == TD3
    (mine / "td3.py").write_text(TD3.replace("0.5, 0.5", "0.4, 0.4"))
    said = train(output, "run", 2)
    assert "has changed since model_1.pt: td3.py; `diff -r " in said
    (mine / "td3.py").unlink()
    (mine / "table.py").unlink()
    output("play", TASK, "--resume", "run", "--as-trained", *FEW)


@pytest.mark.usefixtures("mine")
def test_a_table_of_numbers_learns_on_two_workers(output: Output, tmp_path: Path) -> None:
    flags = ("--tasks-dir", "mine", "--agent.algorithm.name", "table:Table", "--cpu-workers", "2")
    state = is_resumed(output, tmp_path, *flags, "--eval-interval", "2", "--eval-envs", "4")
    assert state["actor_state_dict"]["numbers"].any()
    assert float(rows(tmp_path / "run")[-1]["loss/spread"]) == pytest.approx(0.9**4)
    output("play", "--resume", "run", *FEW)
    output("mjfleet", "export", "run")


@pytest.fixture
def pole(tmp_path: Path) -> Path:
    folder = copy_task(tmp_path / "tasks", "pole")
    (folder / "nets.py").write_text(NETS)
    (folder / "own.py").write_text(REMEMBERING)
    return folder


@pytest.mark.usefixtures("pole")
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("name", ["own:Averaged", "nets:Decaying"])
def test_running_averages_and_a_coefficient_that_changes_are_resumed_bit_for_bit(
    name: str, workers: str, output: Output, tmp_path: Path
) -> None:
    own = ("--agent.algorithm.name", name, "--agent.actor.class-name", "own:Batched")
    is_resumed(output, tmp_path, *own, "--cpu-workers", workers, task="pole-balance")
    entropies = [float(row["loss/entropy_coef"]) for row in rows(tmp_path / "run")]
    factor = 0.9 if name == "own:Averaged" else 0.99
    assert entropies == pytest.approx([0.005 * factor ** (n + 1) for n in range(4)])


@pytest.mark.usefixtures("pole")
@pytest.mark.parametrize(("name", "state"), [("Counting", "count"), ("Filling", "kept")])
def test_what_changes_and_is_not_declared_is_one_message_after_the_first_update(
    name: str, state: str, run: Run, tmp_path: Path
) -> None:
    flags = ("--agent.algorithm.name", f"own:{name}", "--cpu-workers", "1")
    done = run("train", "pole-balance", *FAST, *flags, "--run-dir", "run")
    assert done.returncode == 1
    assert done.stderr.count(f"{name}.{state} changes in an update, and is not declared") == 1
    assert f"`self.scratch({state!r})`" in done.stderr
    assert not [*(tmp_path / "run/checkpoints").glob("model*")]


@pytest.mark.usefixtures("pole")
@pytest.mark.parametrize("algorithm", ["ppo", "nets:Decaying"])
@pytest.mark.parametrize(("name", "state"), [("Calling", "calls"), ("Summing", "total")])
def test_what_a_layer_changes_and_is_no_buffer_is_one_message(
    name: str, state: str, algorithm: str, run: Run
) -> None:
    flags = ("--agent.actor.class-name", f"own:{name}", "--agent.algorithm.name", algorithm)
    done = run("train", "pole-balance", *FAST, *flags, "--cpu-workers", "1", "--run-dir", "run")
    assert done.returncode == 1
    assert f"actor.mlp.1.{state} changes in an update, and is not declared" in done.stderr
    assert "a buffer of a network" in done.stderr


@pytest.mark.usefixtures("pole")
def test_a_memory_of_ones_own_is_declared_by_its_network(output: Output) -> None:
    flags = ("--agent.actor.class-name", "own:Noting", "--cpu-workers", "1")
    train(output, "run", 2, *flags, task="pole-balance")


@pytest.mark.usefixtures("pole")
def test_a_declared_number_that_differs_between_workers_ends_training(run: Run) -> None:
    flags = ("--agent.algorithm.name", "own:Uneven", "--cpu-workers", "2", "--run-dir", "run")
    done = run("train", "pole-balance", *FAST, *flags)
    assert done.returncode == 1
    assert "declared state of rank 1 differ" in done.stderr


def test_files_of_an_installed_package_are_copied_and_the_copy_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site/robots_of_ours/learners"
    package.mkdir(parents=True)
    (package / "td3.py").write_text(TD3)
    (package / "more.py").write_text("number = 3\n")
    (tmp_path / "site/robots_alone.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    reference, pole = "robots_of_ours.learners.td3:TD3", copy_task(tmp_path / "tasks", "pole")
    found = find_task("pole-balance", pole)
    classes = [reference, "robots_alone:Net", "rsl_rl.models:MLPModel", "env:CartpoleEnv", "ppo"]
    modules = found.modules(classes)
    inside = "robots_of_ours/learners/"
    assert modules.keys() == {f"{inside}td3.py", f"{inside}more.py", "robots_alone.py"}
    for name, path in modules.items():
        (pole / name).parent.mkdir(parents=True, exist_ok=True)
        (pole / name).write_bytes(path.read_bytes())
    assert read_code(pole).hash == read_code(pole, modules).hash
    assert found.modules(classes) == {}
    assert found.load(reference, object).__module__.startswith("mjfleet_task_pole")
