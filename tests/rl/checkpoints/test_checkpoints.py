"""Checkpoints: training that goes on from one as if it had never stopped."""

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mjfleet.config import AgentConfig, from_dict
from mjfleet.env import Levels
from mjfleet.env.random_numbers import seed_everything
from mjfleet.errors import UserError
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.checkpoints.files import CheckpointError
from mjfleet.rl.divergence import DivergedError
from mjfleet.rl.runner import Runner
from mjfleet.sim import make_simulation

from ...env.test_env import BUNDLED, build_task

TASK = "cartpole-swingup"
FOUND = BUNDLED[TASK]
SwingupEnv: Any = FOUND.load(FOUND.task.env_class)
SMALL = {
    "num_steps_per_env": 8,
    "save_interval": 100,
    "actor": {"hidden_dims": [8], "obs_normalization": True},
    "critic": {"hidden_dims": [8]},
}
RNN = {"class_name": "RNNModel", "rnn_hidden_dim": 8}
VARIANTS = {
    "plain": {},
    "lstm": {"actor": RNN, "critic": RNN},
    "gru": {"actor": RNN | {"rnn_type": "gru"}, "critic": RNN | {"rnn_type": "gru"}},
    "skrl": {"library": "skrl"},
    "rl_games": {"library": "rl_games"},
    "rsl_rl's own": {"algorithm": {"name": "rsl_rl.algorithms:PPO"}},
    "novelty": {"algorithm": {"rnd_cfg": {"weight": 0.5, "reward_normalization": True}}},
}


def agent(max_iterations: int, **changes: Any) -> AgentConfig:
    small = from_dict(FOUND.task.agent, SMALL | {"max_iterations": max_iterations})
    return from_dict(small, changes)


def build(
    folder: Path,
    config: AgentConfig,
    *,
    num_envs: int = 8,
    task: str = TASK,
    keep: int | None = None,
    engine: str = "native",
    worlds: bool = True,
) -> tuple[Runner, Checkpointer]:
    seed_everything(config.seed)
    env = build_task(task, engine, "cpu", num_envs=num_envs)
    env.max_episode_length = 20
    runner = Runner(env, config, "cpu", 1, FOUND.load)
    return runner, Checkpointer(runner, task, folder, keep, worlds)


def train(runner: Runner, checkpointer: Checkpointer) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    runner.train(rows.append, lambda: None, checkpointer.save)
    return rows


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def load(folder: Path, iteration: int) -> dict[str, Any]:
    return torch.load(folder / f"model_{iteration}.pt", weights_only=True)


def test_a_field_brings_along_no_other(tmp_path: Path) -> None:
    train(*build(tmp_path, agent(1)))
    saved = torch.load(tmp_path / "model_1.pt", weights_only=True)
    (rank,) = saved["mjfleet"]["ranks"]
    for name, field in rank["sim"].items():
        assert field.untyped_storage().nbytes() == field.nbytes, name


@pytest.mark.parametrize(
    ("variant", "engine"), [*((v, "native") for v in VARIANTS), ("plain", "warp")]
)
def test_stopped_and_resumed_is_as_never_stopped(tmp_path: Path, variant: str, engine: str) -> None:
    changes = VARIANTS[variant]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    rows = train(*build(whole, agent(6, **changes), engine=engine))
    first = train(*build(parts, agent(3, **changes), engine=engine))
    runner, checkpointer = build(parts, agent(6, **changes), engine=engine)
    seed_everything(99)
    assert checkpointer.resume(parts / "model_3.pt") == []
    second = train(runner, checkpointer)
    # Down to worlds and random states, of which the next iteration is made.
    assert same(load(whole, 6), load(parts, 6))
    for row, other in zip(rows, first + second, strict=True):
        for name in ("iteration", "total_steps", "mean_return", "loss/value", "learning_rate"):
            assert row[name] == other[name]


class LevelsEnv(SwingupEnv):
    """Begins at level 1 of 9, and gets to the next one with each episode; counts its steps."""

    def setup(self) -> None:
        super().setup()
        self.max_episode_length, self.levels = 20, Levels(self, 9, 1)
        self.taken = self.add_state("taken", dtype=torch.long, shared=True)
        self.delayed = self.add_state("delayed", 2, reset="keep")

    def after_physics(self) -> None:
        self.taken += 1
        self.delayed += 1

    def end_episode(self, mask: torch.Tensor) -> None:
        self.levels.move(mask, torch.zeros_like(mask))


def begin(
    folder: Path, kind: Any, num_envs: int, iterations: int, worlds: bool = True, **changes: Any
) -> tuple[Any, Checkpointer]:
    cfg = replace(FOUND.task.env, num_envs=num_envs)
    sim = make_simulation("native", kind.make_model(cfg), num_envs)
    seed_everything(1)
    runner = Runner(kind(cfg, sim, seed=1), agent(iterations, **changes), "cpu", 1, FOUND.load)
    return runner, Checkpointer(runner, TASK, folder, None, worlds)


@pytest.mark.parametrize("lost", ["worlds per worker", "workers", "--no-save-worlds", None])
def test_other_environments_begin_anew_with_what_is_shared_and_at_the_levels_reached(
    tmp_path: Path, lost: str | None
) -> None:
    worlds = lost != "--no-save-worlds"
    runner, checkpointer = begin(tmp_path, LevelsEnv, 8, 4, worlds)
    train(runner, checkpointer)
    levels = runner.env.levels.now
    state = load(tmp_path, 4)
    levels_there = state["mjfleet"]["ranks"][0]["env"]["levels"][0]
    assert torch.equal(levels_there, levels)
    assert (levels > 1).all()
    if lost == "workers":
        state["mjfleet"]["shape"]["workers"] = 2
    now = 4 if lost == "worlds per worker" else 8
    runner, checkpointer = begin(tmp_path, LevelsEnv, now, 5)
    found = checkpointer.resume(tmp_path / "model_4.pt", state)
    env = runner.env
    assert env.taken == 4 * 8
    assert same(dict(runner.alg.actor.state_dict()), state["actor_state_dict"])
    assert same(runner.alg.save()["optimizer_state_dict"], state["optimizer_state_dict"])
    if lost is None:
        assert not found
        assert torch.equal(env.levels.now, levels)
        assert (env.delayed == 32).all()
    else:
        why = "--no-save-worlds" if not worlds else lost
        assert found[0].startswith(f"environments and random states, which begin anew ({why}")
        assert len(found) == 1
        assert {*env.levels.now.tolist()} <= {*levels.tolist()}
        assert not env.delayed.any()
    assert [row["iteration"] for row in train(runner, checkpointer)] == [5]


class RewardingEnv(SwingupEnv):
    """Has another reward term."""

    def rewards(self) -> dict[str, torch.Tensor]:
        return super().rewards() | {"more": torch.zeros(self.num_envs)}


class WiderEnv(LevelsEnv):
    """Has a state of another size."""

    def add_state(self, name: str, *size: int, **settings: Any) -> torch.Tensor:
        return super().add_state(name, *(5 if name == "delayed" else n for n in size), **settings)


def test_an_environment_that_has_changed_says_so(tmp_path: Path) -> None:
    runner, checkpointer = begin(tmp_path, LevelsEnv, 8, 2)
    train(runner, checkpointer)
    path = tmp_path / "model_2.pt"
    runner, checkpointer = begin(tmp_path, WiderEnv, 8, 4)
    assert checkpointer.resume(path) == [
        "environments and random states, which begin anew (other state is declared)"
    ]
    assert runner.env.taken == 16
    # Another reward term: the sums of episodes that are under way would not fit.
    runner, checkpointer = begin(tmp_path, RewardingEnv, 8, 4)
    (lost,) = checkpointer.resume(path)
    assert "begin anew (reward terms ['balance'], now ['balance', 'more'])" in lost
    assert len(train(runner, checkpointer)) == 2


class LateEnv(SwingupEnv):
    """Writes an attribute that it has not declared, from its 20th step on."""

    def setup(self) -> None:
        super().setup()
        self.taken, self.level = self.add_state("taken", dtype=torch.long, shared=True), 0

    def after_physics(self) -> None:
        self.taken += 1
        if self.taken > 20:
            self.level += 1


def test_what_changes_late_and_is_not_declared_ends_training_after_a_checkpoint(
    tmp_path: Path,
) -> None:
    runner, checkpointer = begin(tmp_path, LateEnv, 8, 9, save_interval=2)
    with pytest.raises(UserError, match=r"LateEnv\.level .*`self.level = self.add_state\('level'"):
        train(runner, checkpointer)
    assert runner.current_learning_iteration == 4
    assert {path.name for path in tmp_path.iterdir()} == {"model_2.pt", "model_4.pt"}
    runner, checkpointer = begin(tmp_path, LateEnv, 8, 9)
    assert checkpointer.resume(tmp_path / "model_2.pt") == []
    assert checkpointer.resume(tmp_path / "model_4.pt") == [
        "level of the environment, which was not declared, and begins anew"
    ]
    assert runner.env.taken == 32


def test_the_state_of_another_optimiser_is_not_taken(tmp_path: Path) -> None:
    train(*build(tmp_path, agent(2)))
    runner, checkpointer = build(tmp_path, agent(4, algorithm={"optimizer": "sgd"}))
    assert checkpointer.resume(tmp_path / "model_2.pt") == ["the state of the optimiser (adam)"]
    train(runner, checkpointer)


def reached(runner: Runner) -> float:
    """Return the learning rate of the next step."""
    assert runner.alg.optimizer.param_groups[0]["lr"] == runner.alg.learning_rate
    return runner.alg.learning_rate


@pytest.mark.parametrize("library", ["rsl_rl", "skrl", "rl_games"])
def test_a_configured_learning_rate_counts_unless_its_schedule_goes_on(
    library: str, tmp_path: Path
) -> None:
    old = agent(3, library=library)
    rate = old.ppo.learning_rate
    runner, checkpointer = build(tmp_path, old)
    train(runner, checkpointer)
    saved, path = runner.alg.learning_rate, tmp_path / "model_3.pt"
    assert saved != rate
    for schedule, typed, wanted in (
        ("adaptive", rate, saved),
        ("adaptive", 2 * rate, 2 * rate),
        ("fixed", rate, rate),
        ("fixed", 2 * rate, 2 * rate),
    ):
        changed = {"schedule": schedule, "learning_rate": typed}
        runner, checkpointer = build(tmp_path, agent(4, library=library, algorithm=changed))
        checkpointer.resume(path)
        assert reached(runner) == wanted
        train(runner, checkpointer)
        if schedule == "fixed":
            assert reached(runner) == wanted


def test_an_adaptive_rate_goes_on_between_gpus_and_cpus(tmp_path: Path) -> None:
    """A GPU has the configured rate in float32."""
    runner, checkpointer = build(tmp_path, agent(3))
    train(runner, checkpointer)
    saved, rate = runner.alg.learning_rate, runner.agent.ppo.learning_rate
    state = torch.load(tmp_path / "model_3.pt", weights_only=True)
    rounded = torch.tensor(rate, dtype=torch.float32).item()
    assert rounded != rate
    state["mjfleet"]["rates"]["optimizer"] = [rounded]
    runner, checkpointer = build(tmp_path, agent(4))
    checkpointer.resume(tmp_path / "model_3.pt", state)
    assert reached(runner) == saved != rate


def test_a_rate_that_an_algorithm_of_ones_own_has_reached_goes_on(tmp_path: Path) -> None:
    fixed = {"schedule": "fixed"}
    runner, checkpointer = build(tmp_path, agent(2, algorithm=fixed))
    runner.alg.set_learning_rate(0.25)  # As a class or a hook of the user's does.
    train(runner, checkpointer)
    runner, checkpointer = build(tmp_path, agent(4, algorithm=fixed))
    checkpointer.resume(tmp_path / "model_2.pt")
    assert reached(runner) == 0.25


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])  # By our PPO, and by rsl_rl's.
def test_a_schedule_of_torchs_decides_the_learning_rate(tmp_path: Path, optimizer: str) -> None:
    config = agent(3, algorithm={"schedule": "fixed", "optimizer": optimizer})
    runner, _ = build(tmp_path, config)
    schedule, rates = torch.optim.lr_scheduler.ExponentialLR(runner.alg.optimizer, 0.5), []

    def after(row: dict[str, Any]) -> None:
        rates.append(row["learning_rate"])
        schedule.step()

    runner.train(after, lambda: None)
    first = config.ppo.learning_rate
    assert rates == [first, first / 2, first / 4]


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_schedule_of_torchs_continues(tmp_path: Path, optimizer: str) -> None:
    config = {"algorithm": {"schedule": "fixed", "optimizer": optimizer}}
    runner, checkpointer = build(tmp_path, agent(2, **config))
    schedule = torch.optim.lr_scheduler.ExponentialLR(runner.alg.optimizer, 0.5)
    first = runner.alg.learning_rate
    runner.train(lambda row: schedule.step(), lambda: None)
    (path,) = checkpointer.save(is_last=True)
    for begin in (0.25, 0.125):
        runner, checkpointer = build(tmp_path, agent(3, **config))
        checkpointer.resume(path)
        assert reached(runner) == 0.25 * first
        if begin == 0.125:  # By a schedule that begins anew, with what the hook counts.
            torch.optim.lr_scheduler.LambdaLR(runner.alg.optimizer, lambda _: 0.125)
        rows = list[dict[str, Any]]()
        runner.train(rows.append, lambda: None)
        assert rows[0]["learning_rate"] == begin * first


def test_the_optimisers_settings_are_those_of_the_configuration(tmp_path: Path) -> None:
    runner, checkpointer = build(tmp_path, agent(2))
    train(runner, checkpointer)
    stock = runner.alg.save() | {"iter": 7, "infos": None}
    (group,) = stock["optimizer_state_dict"]["param_groups"]
    group |= {"lr": 0.3, "betas": (0.5, 0.6), "weight_decay": 0.7}
    torch.save(stock, tmp_path / "stock.pt")
    for optimizer, schedule in (("adamw", "adaptive"), ("adam", "fixed")):
        changed = {"optimizer": optimizer, "schedule": schedule}
        runner, checkpointer = build(tmp_path, agent(9, algorithm=changed))
        (built,) = runner.alg.optimizer.state_dict()["param_groups"]
        checkpointer.resume(tmp_path / "stock.pt")
        state = runner.alg.optimizer.state_dict()
        assert state["param_groups"] == [built]
        assert state["state"][0]["exp_avg"].any()
        assert reached(runner) == runner.agent.ppo.learning_rate


def test_the_rate_of_the_novelty_is_the_configured_one(tmp_path: Path) -> None:
    train(*build(tmp_path, agent(1, **VARIANTS["novelty"])))
    changed = {"rnd_cfg": {"reward_normalization": True, "learning_rate": 0.125}}
    runner, checkpointer = build(tmp_path, agent(2, algorithm=changed))
    checkpointer.resume(tmp_path / "model_1.pt")
    assert runner.alg.rnd
    assert runner.alg.rnd.optimizer.param_groups[0]["lr"] == 0.125


class Bomb:
    """What a stranger's checkpoint may hold."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("exploded"),)


def test_checkpoints_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(*build(tmp_path, agent(2)))
    path = tmp_path / "model_2.pt"

    def refused(path: Path, config: AgentConfig, task: str = TASK) -> str:
        runner, checkpointer = build(tmp_path, config, task=task)
        before = {key: value.clone() for key, value in runner.alg.actor.state_dict().items()}
        with pytest.raises(UserError) as error:
            checkpointer.resume(path)
        assert same(dict(runner.alg.actor.state_dict()), before)
        return str(error.value)

    wider = refused(path, agent(4, actor={"hidden_dims": [16]}))
    assert "Of its actor, mlp.0.weight is [8, 5] there, [16, 5] here; mlp.0.bias is [8]" in wider
    other = refused(path, agent(4, actor={"distribution": {"std_type": "log"}}))
    assert "distribution.std_param is [1] there, absent here" in other  # Matrices are equal.
    assert "of the task cartpole-swingup, not of cartpole-balance" in refused(
        path, agent(4), "cartpole-balance"
    )
    assert "has 2 iterations, and --agent.max-iterations is 2" in refused(path, agent(2))
    torch.save({"actor_state_dict": Bomb()}, tmp_path / "bomb.pt")
    assert "could run somebody's code" in refused(tmp_path / "bomb.pt", agent(4))
    (tmp_path / "bomb.pkl").write_bytes(pickle.dumps(Bomb(), protocol=2))
    assert "bomb.pkl" in refused(tmp_path / "bomb.pkl", agent(4))
    assert not (tmp_path / "exploded").exists()
    old = {"model_state_dict": {}, "optimizer_state_dict": {}, "iter": 1, "infos": None}
    torch.save(old, tmp_path / "other.pt")  # As rsl_rl 3 writes it.
    lacks = "of rsl_rl 5: it lacks actor_state_dict."
    assert refused(tmp_path / "other.pt", agent(4)).endswith(lacks)
    assert "No such file" in refused(tmp_path / "none.pt", agent(4))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("actor_state_dict", "mlp.0.weight"), torch.zeros(1).expand(10**11), "another network"),
        (("optimizer_state_dict",), [], "cannot be restored here"),
        (("optimizer_state_dict", "state", 0, "exp_avg"), torch.zeros(7), "exp_avg"),
        (("mjfleet",), "text", "cannot be restored here"),
        (("mjfleet", "ranks", 0, "sim", "qpos"), torch.zeros(1, 7), "'qpos'"),
        (("mjfleet", "ranks", 0, "env", "generator"), torch.zeros(3), "cannot be restored here"),
    ],
)
def test_what_does_not_fit_this_run_is_named(
    tmp_path: Path, place: tuple[Any, ...], value: Any, said: str
) -> None:
    train(*build(tmp_path, agent(1)))
    state = load(tmp_path, 1)
    parent = state
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    file = tmp_path / "changed.pt"
    torch.save(state, file)
    _, checkpointer = build(tmp_path, agent(9))
    with pytest.raises(UserError, match=re.escape(said)):
        checkpointer.resume(file)


def test_rsl_rls_own_checkpoints_can_be_gone_on_from(tmp_path: Path) -> None:
    runner, checkpointer = build(tmp_path, agent(2))
    train(runner, checkpointer)
    stock = runner.alg.save() | {"iter": 7, "infos": None}
    torch.save(stock, tmp_path / "stock.pt")
    runner, checkpointer = build(tmp_path, agent(9))
    assert checkpointer.resume(tmp_path / "stock.pt") == [
        "random states, environments and counters, which are not in it"
    ]
    assert [row["iteration"] for row in train(runner, checkpointer)] == [8, 9]


def test_networks_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    runner, checkpointer = build(tmp_path, agent(1))
    runner.alg.critic.mlp[0].bias.data[0] = torch.nan
    with pytest.raises(DivergedError, match="not finite"):
        checkpointer.save(is_last=True)
    assert not list(tmp_path.iterdir())


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    train(*build(tmp_path, agent(12, save_interval=1), keep=3))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["final_model.pt", "model_10.pt", "model_11.pt", "model_12.pt"]


def test_training_ends_once_checkpoints_fail_three_times_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    runner, checkpointer = build(folder, agent(20, save_interval=1))
    blocked = {4, 6, 7, 10, 11, 12}

    def block(metrics: Any) -> None:
        """Put a file in the place of the folder: no permission would keep root from writing."""
        if folder.is_file() and metrics["iteration"] not in blocked:
            folder.unlink()
            (tmp_path / "away").rename(folder)
        elif folder.is_dir() and metrics["iteration"] in blocked:
            folder.rename(tmp_path / "away")
            folder.touch()

    with pytest.raises(CheckpointError, match=r"model_12.pt could not be written"):
        runner.train(block, lambda: None, checkpointer.save)
    assert len(caplog.records) == 5
    kept = sorted(int(path.stem.removeprefix("model_")) for path in (tmp_path / "away").iterdir())
    assert kept == [1, 2, 3, 5, 8, 9]


def test_an_earlier_versions_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    run = Path(__file__).parents[2] / "data" / "cartpole-balance-9159368"
    saved = yaml.safe_load((run / "config.yaml").read_text())["agent"]
    config = from_dict(BUNDLED["cartpole-balance"].task.agent, saved | {"max_iterations": 5})
    runner, checkpointer = build(tmp_path, config, task="cartpole-balance")
    (lost,) = checkpointer.resume(run / "checkpoints" / "model_3.pt")
    assert lost == "environments and random states, which begin anew (other state is declared)"
    assert [row["iteration"] for row in train(runner, checkpointer)] == [4, 5]
