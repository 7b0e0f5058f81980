"""Playing in real time: what somebody who watches can change, without a display."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mjfleet.errors import UserError
from mjfleet.tools.play.policy_episodes import Player
from mjfleet.tools.play.realtime_playback import NEWEST, Playback

from ..tasks.test_go1_env import CALM, build


class Actor:
    """Keeps the standing pose, and notes which checkpoints it was given, and what it forgot."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.loaded: list[str] = []
        self.forgotten: list[list[bool]] = []

    def forget(self, ended: torch.Tensor) -> None:
        self.forgotten.append(ended.tolist())

    def act(self, observations: Any) -> torch.Tensor:
        return torch.zeros_like(self.env.action)

    def load(self, checkpoint: Path) -> None:
        if not checkpoint.stat().st_size:
            raise UserError(f"{checkpoint} is damaged")
        self.loaded.append(checkpoint.name)


def play(
    folder: Path | None = None, playing: str = "model_1.pt", choice: str = NEWEST, **parts: Any
) -> tuple[Playback, Actor]:
    env = build("go1-velocity-flat", 2, parts={"random": CALM} | parts)
    actor = Actor(env)
    player = Player(env, actor.act, actor.load, actor.forget)
    return Playback(player, playing, folder, choice), actor


def test_time_passes_at_the_wanted_speed_and_stops_in_a_pause() -> None:
    playback, _ = play()
    step = playback.env.step_dt
    assert playback.advance(1.1 * step) == 1
    assert playback.advance(1.1 * step) == 1
    playback.speed = 0.5
    assert [playback.advance(step) for _ in range(4)].count(1) == 2

    playback.later(playback.toggle)
    before = playback.env.sim.time.clone()
    assert playback.advance(10.0) == 0
    assert torch.equal(playback.env.sim.time, before)
    playback.step()
    assert (playback.env.sim.time > before).all()


def test_a_machine_that_cannot_keep_up_does_not_fall_further_behind() -> None:
    playback, _ = play()
    assert 1 <= playback.advance(1000.0) < 10_000
    assert playback.advance(0.0) <= 1


def test_a_reset_begins_new_episodes() -> None:
    playback, actor = play()
    for _ in range(5):
        playback.step()
    assert (playback.sums != 0).any()
    assert actor.forgotten == [[False, False]] * 5
    playback.reset()
    assert actor.forgotten[-1] == [True, True]
    assert playback.env.episode_length_buf.tolist() == [0, 0]
    playback.step()
    assert torch.equal(playback.sums, playback.env.terms)
    terms, metrics = playback.numbers()
    assert [name for name, _, _ in terms] == list(playback.env.reward_names)
    assert set(metrics) == set(playback.env.metric_names)


def test_commands_by_hand_stay_until_the_task_draws_them_again() -> None:
    command = {"seconds": (0.02, 0.02), "heading_share": 1.0}
    playback, _ = play(command=command)
    playback.override_commands({"forward": 0.5, "left": 0.0, "turn_left": -0.25})
    for _ in range(3):
        playback.step()
        seen = playback.env.get_observations()["actor"][:, -3:]
        assert torch.equal(seen, torch.tensor([0.5, 0.0, -0.25]).expand(2, 3))
    playback.override_commands(None)
    playback.step()
    assert (playback.env.commands()["forward"][0] != 0.5).all()


def test_a_newer_checkpoint_is_played_and_a_damaged_one_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model_1.pt").write_text("weights")
    playback, actor = play(tmp_path)
    playback.load_choice()
    assert actor.loaded == []
    (tmp_path / "model_2.pt").touch()
    playback.load_choice()
    assert "model_2.pt is damaged" in capsys.readouterr().out
    (tmp_path / "model_10.pt").write_text("weights")
    for _ in range(2):
        playback.load_choice()
    assert actor.loaded == ["model_10.pt"]
    assert playback.playing == "model_10.pt"


def test_a_chosen_checkpoint_stays_until_the_newest_is_chosen(tmp_path: Path) -> None:
    for name in ("model_1.pt", "model_20.pt", "best.pt"):
        (tmp_path / name).write_text("weights")
    playback, actor = play(tmp_path)
    assert playback.checkpoints() == ["model_20.pt", "model_1.pt", "best.pt"]
    playback.choice = "best.pt"
    playback.load_choice()
    (tmp_path / "model_30.pt").write_text("weights")
    playback.load_choice()
    assert (actor.loaded, playback.playing) == (["best.pt"], "best.pt")
    playback.choice = "../model_1.pt"  # Not one of them.
    playback.load_choice()
    playback.choice = NEWEST
    playback.load_choice()
    assert actor.loaded == ["best.pt", "model_30.pt"]


def test_a_checkpoint_that_is_named_is_one_of_the_choices_and_stays(tmp_path: Path) -> None:
    for name in ("model_1.pt", "final_model.pt"):
        (tmp_path / name).write_text("weights")
    playback, actor = play(tmp_path, "final_model.pt", "final_model.pt")
    (tmp_path / "model_2.pt").write_text("weights")
    assert playback.checkpoints() == ["model_2.pt", "model_1.pt", "final_model.pt"]
    playback.load_choice()
    assert actor.loaded == []


def test_the_motion_of_the_robot_is_that_in_its_own_frame() -> None:
    playback, _ = play()
    sim = playback.env.sim
    frame = sim.xmat[:, sim.model.body("trunk").id].view(-1, 3, 3)
    sim.qvel[:, :3] = 0.7 * frame[:, :, 0] - 0.2 * frame[:, :, 1]
    sim.qvel[:, 5] = 0.3
    expected = {"forward": 0.7, "left": -0.2, "turn_left": 0.3}
    assert playback.motion() == pytest.approx(expected, abs=1e-6)
