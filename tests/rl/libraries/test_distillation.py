"""A student imitates the policy of another run."""

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import mjfleet
from mjfleet.config import from_dict
from mjfleet.rl.runner import Runner

from ...conftest import SMALL, Run, rows
from ...env.test_env import BUNDLED, build_task

TASK = "cartpole-balance"
SAVING = (*SMALL, "--agent.save-interval", "1", "--plain")
STUDENT = (
    *("--agent.algorithm.name", "distillation", "--agent.algorithm.gradient-length", "4"),
    *("--agent.actor.distribution.init-std", "0.1", "--agent.run-name", "student"),
)


@pytest.fixture
def teacher(run: Run, tmp_path: Path) -> Path:
    """A run whose policy observes the group `critic`, by a larger network."""
    observed = ("--agent.obs-groups.actor", "critic", "--agent.actor.hidden-dims", "24", "24")
    normalised = ("--agent.actor.obs-normalization", "--agent.run-name", "teacher")
    done = run("train", TASK, *SAVING, "--agent.max-iterations", "2", *observed, *normalised)
    assert done.returncode == 0, done.stderr
    (run_dir,) = tmp_path.glob("logs/*/*_teacher")
    return run_dir


def weights(run_dir: Path, iteration: int) -> dict[str, dict[str, torch.Tensor]]:
    file = run_dir / "checkpoints" / f"model_{iteration}.pt"
    state = torch.load(file, weights_only=True)
    return {name: state[f"{name}_state_dict"] for name in ("actor", "critic")}


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_student_learns_resumes_and_plays_without_its_teachers_run(
    workers: str, teacher: Path, run: Run, tmp_path: Path
) -> None:
    command = ("train", TASK, *SAVING, "--cpu-workers", workers)
    done = run(*command, "--agent.max-iterations", "4", *STUDENT, "--teacher", "teacher")
    assert done.returncode == 0, done.stderr
    assert "behavior_loss=" in done.stdout
    (student,) = tmp_path.glob("logs/*/*_student")
    theirs = weights(teacher, 2)["actor"]
    shutil.rmtree(teacher)
    done = run(*command, "--agent.max-iterations", "8", "--resume", "student")
    assert "continues in place" in done.stdout, done.stderr
    losses = [float(row["loss/behavior"]) for row in rows(student)]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2
    torch.testing.assert_close(weights(student, 8)["critic"], theirs, rtol=0, atol=0)
    if workers == "2":
        return
    few = ("--env.num-envs", "2", "--episodes", "2")
    assert run("play", TASK, "--resume", "student", *few).returncode == 0
    assert run("mjfleet", "export", "student").returncode == 0

    # The student goes on by PPO, in a run of its own.
    done = run(*command, "--resume", "student", "--fork", "--agent.algorithm.name", "ppo",
               "--agent.max-iterations", "9", "--agent.run-name", "tuned")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "not kept: the value network or teacher" in done.stdout
    assert "--agent.teacher.checkpoint is None, was /" in done.stdout
    assert "--agent.teacher.hidden-dims" not in done.stdout


def test_a_resumed_student_computes_what_one_without_interruption_does(
    teacher: Path, run: Run, tmp_path: Path
) -> None:
    recurrent = ("--agent.actor.class-name", "RNNModel", "--agent.actor.rnn-hidden-dim", "8")
    for name in ("whole", "halved"):
        for iterations in ("4",) if name == "whole" else ("2", "4"):
            more = ("--resume", "halved") if iterations == "4" and name == "halved" else (
                *STUDENT[:-1], name, "--teacher", str(teacher), *recurrent,
            )  # fmt: skip
            done = run("train", TASK, *SAVING, "--agent.max-iterations", iterations, *more)
            assert done.returncode == 0, done.stderr
    whole, halved = (next(tmp_path.glob(f"logs/*/*_{name}")) for name in ("whole", "halved"))
    torch.testing.assert_close(weights(whole, 4), weights(halved, 4), rtol=0, atol=0)


def test_a_teacher_remembers_from_rollout_to_rollout() -> None:
    task = BUNDLED[TASK]
    memory = {"class_name": "RNNModel", "rnn_hidden_dim": 8, "hidden_dims": [8]}
    learning = {"name": "distillation", "gradient_length": 4}
    numbers = {"num_steps_per_env": 4, "max_iterations": 3}
    config = from_dict(task.task.agent, {**numbers, "algorithm": learning, "teacher": memory})
    env = build_task(TASK, "native", "cpu", num_envs=4)
    env.max_episode_length = 6
    runner = Runner(env, config, "cpu", 1, task.load)
    alone, rollout = copy.deepcopy(runner.alg.critic).eval(), runner.alg.storage

    @torch.inference_mode()
    def follow(row: Any) -> None:
        for step in range(4):
            expected = alone(rollout.observations[step])
            torch.testing.assert_close(rollout.privileged_actions[step], expected)
            alone.reset(rollout.dones[step].flatten())

    runner.train(follow, lambda: None)
    assert runner.current_learning_iteration == 3


def test_iterate_imitates_the_teacher_of_a_runs_configuration(
    teacher: Path, run: Run, tmp_path: Path
) -> None:
    command = ("train", TASK, *SAVING, *STUDENT, "--agent.max-iterations", "1")
    assert run(*command, "--teacher", str(teacher)).returncode == 0
    (config,) = tmp_path.glob("logs/*/*_student/config.yaml")
    (iteration,) = mjfleet.iterate(TASK, config=config)
    theirs = weights(teacher, 2)["actor"]
    torch.testing.assert_close(iteration.runner.alg.critic.state_dict(), theirs, rtol=0, atol=0)
    text = config.read_text()
    config.write_text(re.sub("checkpoint: /.*", "checkpoint: null", text))
    with pytest.raises(mjfleet.UserError, match="needs --teacher RUN"):
        next(mjfleet.iterate(TASK, config=config))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (STUDENT, "needs --teacher RUN"),
        ((*STUDENT, "--teacher", "nobody"), "--teacher nobody: "),
        (("--teacher", "latest"), "--agent.algorithm.name distillation"),
        ((*STUDENT, "--teacher", "RUN/config.yaml"), "--teacher "),
    ],
)
def test_a_teacher_that_is_missing_is_one_message(
    flags: tuple[str, ...], words: str, run: Run, tmp_path: Path
) -> None:
    done = run("train", TASK, *SAVING, *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert not list(tmp_path.glob("logs/*/*"))


def test_a_teacher_has_to_fit_the_task(teacher: Path, run: Run, tmp_path: Path) -> None:
    """The Go1 observes groups of the same names, of other sizes."""
    small = ("--env.num-envs", "4", "--agent.max-iterations", "1", "--teacher", str(teacher))
    done = run("train", "go1-velocity-flat", *STUDENT, *small)
    assert done.returncode == 2
    assert "does not fit" in done.stderr
    assert not list(tmp_path.glob("logs/go1-velocity-flat/*"))
    config = teacher / "attempts/1/config.yaml"
    config.write_text(config.read_text().replace("actor:\n    - critic", "actor:\n    - lidar"))
    done = run("train", TASK, *SAVING, *STUDENT, "--teacher", str(teacher))
    assert done.returncode == 2
    assert "observes the group 'lidar'" in done.stderr
