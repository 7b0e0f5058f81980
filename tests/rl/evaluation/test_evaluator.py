"""Evaluation during training: the same episodes each time, and training that does not notice."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import pytest
import torch

from mjfleet.config import AgentConfig, EnvConfig
from mjfleet.env import Env, EnvShard, Levels
from mjfleet.env.random_numbers import own_random_numbers, seed_everything
from mjfleet.errors import UserError
from mjfleet.rl.checkpoints.contents import Checkpointer
from mjfleet.rl.evaluation.evaluator import Episodes, Evaluator
from mjfleet.rl.runner import Runner
from mjfleet.sim import make_simulation
from mjfleet.tools.play.policy_episodes import Player, evaluate, sum_up

from ...conftest import TESTS
from ...nan_dump.test_nan import SpoiltEnv
from ..checkpoints.test_checkpoints import FOUND, TASK, VARIANTS, agent, load, same, train

CartpoleEnv: Any = FOUND.load(FOUND.task.env_class)
STEPS = 15


class ShortEnv(CartpoleEnv):
    """Random in every step, also by generators that a task has no business with."""

    def setup(self) -> None:
        self.max_episode_length = STEPS
        self.friend = torch.rand(1)

    def observe(self) -> dict[str, torch.Tensor]:
        noise = self.normal(5) + torch.rand(1) + self.friend
        return {name: group + 0.1 * noise for name, group in super().observe().items()}


def make_env(kind: Any = ShortEnv, share: EnvShard | None = None, on_nan: Any = "stop") -> Env[Any]:
    count = share.count if share else 4
    cfg = replace(FOUND.task.env, num_envs=count)
    sim = make_simulation("native", kind.make_model(cfg), count)
    with own_random_numbers(7, "cpu"):
        env = kind(cfg, sim, 7, share)
    env.on_nan = on_nan
    return env


def build(
    folder: Path,
    config: AgentConfig,
    evaluator: Evaluator | None = None,
    keep: int | None = None,
    kind: Any = ShortEnv,
) -> tuple[Runner, Checkpointer]:
    folder.mkdir(exist_ok=True)
    seed_everything(config.seed)
    runner = Runner(make_env(kind), config, "cpu", 1, FOUND.load, evaluator=evaluator)
    return runner, Checkpointer(runner, TASK, folder, keep)


def evaluator(every: int, kind: Any = ShortEnv, total: int = 4) -> Evaluator:
    """Return one for every so many iterations, of all of so many environments."""
    return Evaluator(make_env(kind, EnvShard(0, total, total)), every)


def evaluations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What does not depend on the clock."""
    names = [name for name in rows[0] if name.startswith("eval/") and name != "eval/seconds"]
    return [{name: row[name] for name in names} for row in rows]


@pytest.mark.parametrize("variant", ["plain", "lstm"])
def test_training_is_the_same_with_and_without_it_and_resumed(tmp_path: Path, variant: str) -> None:
    changes = VARIANTS[variant]
    plain = train(*build(tmp_path / "plain", agent(5, **changes)))
    assert not any(name.startswith("eval/") for name in plain[0])
    whole = train(*build(tmp_path / "whole", agent(5, **changes), evaluator(2)))
    for row, other in zip(plain, whole, strict=True):
        for name in ("total_steps", "mean_return", "mean_reward", "loss/value", "learning_rate"):
            assert row[name] == other[name]
    left, right = (load(tmp_path / name, 5) for name in ("plain", "whole"))
    best, judged_by = (right["mjfleet"].pop(name) for name in ("best_return", "judged_by"))
    assert judged_by == {"envs": 4, "levels": []}
    assert [left["mjfleet"].pop(name) for name in ("best_return", "judged_by")] == [None, None]
    assert same(left, right)  # Down to worlds, random states and memories.

    # After every second iteration and after the last one.
    reached = [row["eval/return"] for row in whole]
    assert [value is not None for value in reached] == [False, True, False, True, True]
    assert best == max(value for value in reached if value is not None)
    assert {row["eval/length"] for row in whole} == {None, STEPS}
    assert all(row["eval/reward/balance"] == row["eval/return"] for row in whole)

    parts = tmp_path / "parts"
    runner, checkpointer = build(parts, agent(5, **changes), evaluator(2))
    stops = iter([None, None, 2])
    first: list[dict[str, Any]] = []
    runner.train(first.append, lambda: next(stops), checkpointer.save)
    runner, checkpointer = build(parts, agent(5, **changes), evaluator(2))
    assert checkpointer.resume(parts / "model_3.pt") == []
    assert evaluations(first + train(runner, checkpointer)) == evaluations(whole)
    assert runner.best.mean_return == best
    assert same(load(parts, 5), load(tmp_path / "whole", 5))


def test_the_best_policy_is_kept_however_far_back_a_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def part(iterations: int) -> tuple[Runner, Checkpointer]:
        return build(tmp_path, agent(iterations, save_interval=1), evaluator(1), keep=2)

    rows = train(*part(6))
    reached = [row["eval/return"] for row in rows]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best.pt", "final_model.pt", "model_5.pt", "model_6.pt",
    ]  # fmt: skip
    best = torch.load(tmp_path / "best.pt", weights_only=True)
    assert best["iter"] == 1 + reached.index(max(reached))
    assert best["mjfleet"]["best_return"] == max(reached)

    # It goes on from any checkpoint, but nothing worse takes its place.
    before = (tmp_path / "best.pt").read_bytes()
    runner, checkpointer = part(6)
    checkpointer.resume(tmp_path / "model_5.pt")
    assert train(runner, checkpointer)[0]["eval/return"] == reached[5]
    assert (tmp_path / "best.pt").read_bytes() == before
    runner, checkpointer = part(7)
    checkpointer.resume(tmp_path / "best.pt")
    again = [row["eval/return"] for row in train(runner, checkpointer)]
    assert again[:-1] == reached[best["iter"] :]

    (tmp_path / "best.pt").write_bytes(b"cut off")
    runner, checkpointer = part(8)
    assert "best.pt" in caplog.text
    checkpointer.resume(tmp_path / "model_7.pt")
    train(runner, checkpointer)
    assert torch.load(tmp_path / "best.pt", weights_only=True)["iter"] == 8


class FadingEnv(ShortEnv):
    """A step is worth less and less."""

    worth = 1.0

    def rewards(self) -> dict[str, torch.Tensor]:
        return {"worth": torch.full((self.num_envs,), self.worth)}


def test_a_best_policy_that_could_not_be_written_gives_way_to_a_later_one(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    runner, checkpointer = build(folder, agent(3), evaluator(1, FadingEnv))

    def block(row: dict[str, Any]) -> None:
        """Put a file in the place of the folder while the first policy is to be written."""
        FadingEnv.worth /= 2
        if row["iteration"] == 1:
            folder.rmdir()
            folder.touch()
        elif row["iteration"] == 2:
            folder.unlink()
            folder.mkdir()

    runner.train(block, lambda: None, checkpointer.save)
    assert torch.load(folder / "best.pt", weights_only=True)["iter"] == 2


def test_a_world_lives_through_the_same_whoever_has_it() -> None:
    policy = Runner(make_env(), agent(1), "cpu", 1, FOUND.load).alg.actor.eval()

    def reached(first: int, count: int) -> float:
        env = make_env(share=EnvShard(first, count, 6))
        assert env.env_ids.tolist() == list(range(first, first + count))
        return Evaluator(env, 1).evaluate(policy, lambda: None)["return"][0]

    each = [reached(world, 1) for world in range(6)]
    assert len(set(each)) == 6
    assert reached(0, 6) == pytest.approx(sum(each))
    assert reached(2, 3) == pytest.approx(sum(each[2:5]))


class PatientEnv(SpoiltEnv):
    """World i fails in step i + 1, and is worth 1 a step, then 100."""

    def setup(self) -> None:
        super().setup()
        self.max_episode_length = 4
        self.episodes = torch.zeros(self.num_envs)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        self.episodes = self.episodes + mask
        return super().reset_worlds(mask)

    def rewards(self) -> dict[str, torch.Tensor]:
        return {"alive": torch.where(self.episodes > 1, 100.0, 1.0)}

    def terminated(self) -> torch.Tensor:
        return self.episode_length_buf > torch.arange(self.num_envs)

    def metrics(self) -> dict[str, Any]:
        return {"age": self.episode_length_buf.float()}


def test_each_world_plays_whole_episodes_and_no_more() -> None:
    env = make_env(PatientEnv)
    rows = Episodes(env, lambda _: torch.zeros(4, 1)).play()
    assert rows.tolist() == [[1, 1, 1, 1], [2, 2, 3, 2], [3, 3, 6, 3], [4, 4, 10, 4]]
    rows = Episodes(make_env(PatientEnv), lambda _: torch.zeros(4, 1), per_env=2).play()
    assert rows[:, 0].tolist() == [1, 2, 3, 4] * 2
    assert rows[:, 1].tolist() == [1, 2, 3, 4, 100, 200, 300, 400]


def test_a_recurrent_policy_forgets_between_episodes() -> None:
    class EvenEnv(PatientEnv):
        def rewards(self) -> dict[str, torch.Tensor]:
            return {"action": self.action[:, 0].clone()}

        def observe(self) -> dict[str, torch.Tensor]:
            return dict.fromkeys(("actor", "critic"), torch.ones(self.num_envs, 5))

    runner = Runner(make_env(EvenEnv), agent(1, **VARIANTS["gru"]), "cpu", 1, FOUND.load)
    policy = runner.alg.actor.eval()
    with torch.inference_mode():
        rows = Episodes(make_env(EvenEnv), policy, per_env=2, after_step=policy.reset).play()
    assert torch.allclose(rows[:4], rows[4:])
    assert rows[3, 1] != 4 * rows[0, 1]  # It remembers within an episode.


@pytest.mark.parametrize("on_nan", ["stop", "reset"])
def test_a_number_that_is_not_finite_is_told_and_never_best(
    on_nan: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    env: Any = make_env(SpoiltEnv, share=EnvShard(0, 4, 4), on_nan=on_nan)
    env.max_episode_length, env.spoil, env.at, env.forever = STEPS, "reward", 4, True
    runner, checkpointer = build(tmp_path, agent(2), Evaluator(env, 1))
    rows = train(runner, checkpointer)
    assert len(rows) == 2
    if on_nan == "stop":
        assert {row["eval/return"] for row in rows} == {None}
        assert "iteration 1: an evaluation had numbers that are not finite" in caplog.text
        assert not (tmp_path / "best.pt").exists()
    else:  # The other three episodes count.
        assert {row["eval/length"] for row in rows} == {STEPS}
        assert all(row["eval/return"] > 0 for row in rows)
        assert not caplog.records


def test_play_counts_no_episode_that_a_number_has_ended() -> None:
    env: Any = make_env(SpoiltEnv, share=EnvShard(0, 4, 4), on_nan="reset")
    env.max_episode_length, env.spoil, env.at = STEPS, "qvel", 4
    rows = Episodes(env, lambda _: torch.zeros(4, 1), per_env=2).play()
    assert rows[:, 0].isfinite().tolist() == [True] * 3 + [False] + [True] * 4
    sums = sum_up(env, rows)
    assert sums.episodes == 7
    assert sums.numbers["length"] == {"mean": STEPS, "std": 0, "min": STEPS, "max": STEPS}
    assert math.isfinite(sums.numbers["return"]["mean"])


def test_all_that_an_environment_remembers_begins_anew() -> None:
    class KeepingEnv(CartpoleEnv):
        def setup(self) -> None:
            self.seen = self.add_state("seen", shared=True)
            self.sums = self.add_state("sums", reset="keep")
            self.max_episode_length = 3

        def after_physics(self) -> None:
            self.seen += 1
            self.sums += 1

        def rewards(self) -> dict[str, torch.Tensor]:
            return {"count": self.seen + self.sums}

    keeping = evaluator(1, KeepingEnv)
    policy = Runner(make_env(), agent(1), "cpu", 1, FOUND.load).alg.actor.eval()
    first, *others = [keeping.evaluate(policy, lambda: None) for _ in range(3)]
    assert others == [first] * 2


class LevelsEnv(ShortEnv):
    """Each step is worth its level."""

    def setup(self) -> None:
        super().setup()
        self.levels = Levels(self, 3)

    def end_episode(self, mask: torch.Tensor) -> None:
        self.levels.move(~mask, mask)

    def rewards(self) -> dict[str, torch.Tensor]:
        return {"level": self.levels.now.float()}


def test_an_evaluation_has_a_figure_for_each_level_and_the_best_policy_goes_by_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = train(*build(tmp_path, agent(2), evaluator(2, LevelsEnv, 6), kind=LevelsEnv))
    assert [rows[0][f"eval/level/{n}"] for n in range(3)] == [None] * 3
    assert [rows[1][f"eval/level/{n}"] for n in range(3)] == [0, STEPS, 2 * STEPS]
    assert rows[1]["eval/return"] == STEPS
    assert load(tmp_path, 2)["mjfleet"]["best_return"] == STEPS

    # A part of it adds up to the same, also where it has not all levels.
    policy = build(tmp_path / "other", agent(1))[0].alg.actor.eval()
    part = Evaluator(make_env(LevelsEnv, EnvShard(0, 2, 6)), 2).evaluate(policy, lambda: None)
    assert [part[f"level/{n}"] for n in range(3)] == [(0.0, 2), (0.0, 0), (0.0, 0)]

    # Returns in other episodes are not compared with it.
    runner, _ = build(tmp_path, agent(2), evaluator(2, LevelsEnv, 6))
    assert runner.best.mean_return == STEPS
    runner, _ = build(tmp_path, agent(2), evaluator(2, LevelsEnv, 3))
    assert runner.best.mean_return is None
    assert "was evaluated in other episodes" in caplog.text
    with pytest.raises(UserError, match="--eval-envs is 2; it must be at least 3"):
        evaluator(2, LevelsEnv, 2)


class BoxEnv(Env[EnvConfig]):
    """A box lies on a floor, which it touches at four points."""

    @classmethod
    def make_model(cls, cfg: EnvConfig) -> mujoco.MjModel:
        spec = mujoco.MjSpec.from_file(str(TESTS / "models/box.xml"))
        joint = mujoco.mjtTrn.mjTRN_JOINT
        spec.add_actuator(name="push", target="root", trntype=joint, gear=[1, 0, 0, 0, 0, 0])
        return spec.compile()

    def setup(self) -> None:
        self.max_episode_length = STEPS

    def reset_worlds(self, mask: torch.Tensor) -> None:
        self.write(mask, self.sim.qpos[:, 2], 0.059)

    def apply(self, action: torch.Tensor) -> None:
        self.sim.ctrl[:] = action

    def observe(self) -> dict[str, torch.Tensor]:
        return dict.fromkeys(("actor", "critic"), self.sim.qvel.float())

    def rewards(self) -> dict[str, torch.Tensor]:
        return {"still": -self.sim.qvel.norm(dim=1)}


def box_judge() -> BoxEnv:
    """Boxes that have room for one contact at first."""
    cfg = EnvConfig(num_envs=4)
    sim = make_simulation("warp", BoxEnv.make_model(cfg), 4, nconmax=1, njmax=64)
    return BoxEnv(cfg, sim, 7, EnvShard(0, 4, 4))


def test_episodes_that_lose_contacts_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    env = box_judge()
    evaluate(Player(env, lambda _: torch.zeros(4, 1)), 4)
    assert re.search(r"^warning: .*--env\.nconmax was 1, is now 4", capsys.readouterr().out, re.M)


def test_an_evaluation_that_loses_contacts_is_said_and_is_not_the_best(tmp_path: Path) -> None:
    def make(folder: Path, iterations: int) -> tuple[Runner, Checkpointer]:
        return build(folder, agent(iterations), Evaluator(box_judge(), 1), kind=BoxEnv)

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    runner, checkpointer = make(whole, 2)
    said: list[list[str]] = []
    rows: list[Any] = []

    def note(row: Any) -> None:
        rows.append(row)
        said.append(runner.warnings)

    runner.train(note, lambda: None, checkpointer.save)
    (first, second), text = said, said[0][0]
    assert text.startswith("in an evaluation, the policy is not taken for the best: ")
    assert "--env.nconmax was 1, is now 4" in " ".join(first)
    assert second == []
    assert rows[0]["eval/return"] is not None
    assert runner.best.mean_return == rows[1]["eval/return"]
    assert torch.load(whole / "best.pt", weights_only=True)["iter"] == 2

    train(*make(parts, 1))
    assert not (parts / "best.pt").exists()
    resumed, checkpointer = make(parts, 2)
    assert checkpointer.resume(parts / "model_1.pt") == []
    assert train(resumed, checkpointer)[0]["eval/return"] == rows[1]["eval/return"]
    assert resumed.warnings == []
    assert resumed.best.mean_return == runner.best.mean_return
