"""What happens in a run between captured rollouts and updates: videos, curricula, resuming."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mjfleet.env import next_levels
from mjfleet.rl.checkpoint_contents import Checkpointer
from mjfleet.rl.runner import Runner
from mjfleet.video.video_recorder import StateRecorder

from ..env.test_env import BUNDLED
from ..helpers.cuda_graph_stub import CudaGraphStub
from .test_captured import (
    ITERATIONS,
    NUM_ENVS,
    STEPS,
    SWINGUP,
    SWINGUP_ENV,
    assert_same,
    build,
    learned,
    make_runner,
    refuse,
)


def test_videos_of_replays_show_what_calls_would_show() -> None:
    recordings = []
    for by_graphs in (True, False):
        env = build(SWINGUP, SWINGUP_ENV)
        capture = CudaGraphStub(env.sim).capture if by_graphs else refuse
        runner = make_runner(SWINGUP, env, capture)
        assert env.recorder is not None
        videos = StateRecorder(env, env.recorder, ITERATIONS * STEPS * env.step_dt)

        def take(runner: Runner, iteration: int, videos: StateRecorder = videos) -> None:
            videos.take()

        learned(runner, take)
        recordings.append(videos.finish("swing-up").steps)
    by_graphs, by_calls = recordings
    assert by_graphs.keys() == by_calls.keys() >= {"time", "qpos", "reward"}
    for name, values in by_graphs.items():
        assert len(values) == ITERATIONS * STEPS
        assert np.array_equal(values, by_calls[name]), name
    assert not np.array_equal(by_graphs["qpos"][-1], by_graphs["qpos"][-2])


class HasCurriculum(SWINGUP_ENV):
    """Episodes begin the further from the middle, the higher the level."""

    def setup(self) -> None:
        super().setup()
        self.level = torch.zeros(NUM_ENVS, dtype=torch.long)

    def reset_worlds(self, mask: torch.Tensor) -> None:
        super().reset_worlds(mask)
        is_good = self.uniform(1, 0.0, 1.0).squeeze(1) < 0.6
        self.level = next_levels(self, self.level, mask & is_good, mask & ~is_good, 3)
        farther = self.sim.qpos[:, 0] + 0.1 * self.level
        self.sim.qpos[:, 0] = torch.where(mask, farther, self.sim.qpos[:, 0])


def test_curricula_go_on_between_replays(caplog: pytest.LogCaptureFixture) -> None:
    levels: list[list[int]] = []

    def note(runner: Runner, iteration: int) -> None:
        env: Any = runner.env
        levels.append(env.level.tolist())

    assert_same(caplog, SWINGUP, HasCurriculum, between=note, evaluates=True)
    assert levels[:ITERATIONS] == levels[ITERATIONS:]
    assert len({tuple(row) for row in levels[2:ITERATIONS]}) > 1, "they change in replays"


def test_a_resumed_run_is_captured_and_ends_as_one_that_never_stopped(tmp_path: Path) -> None:
    found = BUNDLED["go1-velocity-flat"]
    env_class, ends = found.load(found.task.env_class), []

    def train(folder: Path, *, by_graphs: bool, until: int, resume: bool = False) -> None:
        env = build(found, env_class)
        stub = CudaGraphStub(env.sim)
        runner = make_runner(found, env, stub.capture if by_graphs else refuse)
        checkpointer = Checkpointer(runner, found.name, folder, keep=None)
        if resume:
            assert checkpointer.resume(folder / "model_3.pt") == []

        def stop() -> int | None:
            return signal.SIGTERM if runner.current_learning_iteration == until - 1 else None

        runner.train(lambda metrics: None, stop, checkpointer.save)
        assert not by_graphs or min(graph.replays for graph in stub.graphs) > 1

    for name, is_stopped in (("whole", False), ("parts", True)):
        folder = tmp_path / name
        folder.mkdir()
        if is_stopped:
            train(folder, by_graphs=True, until=3)
        train(folder, by_graphs=is_stopped, until=ITERATIONS, resume=is_stopped)
        ends.append(torch.load(folder / f"model_{ITERATIONS}.pt", weights_only=True))
    for part in ("actor_state_dict", "critic_state_dict"):
        whole, parts = (end[part] for end in ends)
        assert all(torch.equal(whole[name], value) for name, value in parts.items())
    whole, parts = (end["mjfleet"]["ranks"][0]["sim"] for end in ends)
    assert all(torch.equal(whole[name], value) for name, value in parts.items())
