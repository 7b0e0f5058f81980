"""Whole episodes of a policy, and what they were like. Importing this imports nothing heavy."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mjfleet.config import from_dict
from mjfleet.registry import find_task
from mjfleet.worker.thread_limits import prepare
from mjfleet.worker.worker_args import WorkerArgs

if TYPE_CHECKING:
    import torch

    from mjfleet.env import Env
    from mjfleet.video.recording import Recorder, Recording

Actions = Literal["zero", "random"]


@dataclass(frozen=True)
class Player:
    """An environment and what acts in it."""

    env: "Env[Any]"
    act: Callable[[Any], "torch.Tensor"]
    """Actions `(num_envs, num_actions)` for observations."""
    load: Callable[[Path], object]
    """Act as another checkpoint of the same run says.

    Raises:
        UserError: it cannot be read, or is of other networks.
    """
    forget: Callable[["torch.Tensor"], object] = lambda dones: None
    """Told which worlds are done, `(num_envs,)`, bool: a recurrent policy begins there anew."""


@contextmanager
def playing(job: WorkerArgs, policy: Path | Actions | None) -> Iterator[Player]:
    """Inside the block, nothing is learned and the device is the job's.

    Args:
        job: the task and its configuration, on one device.
        policy: a checkpoint, or which actions to take instead.
    """
    prepare()
    import torch

    from mjfleet.env.factory import build_env, on_device
    from mjfleet.rl.checkpoint_files import seed_everything

    found = find_task(job.task, Path(job.task_folder))
    config = from_dict(found.defaults(), job.config)
    seed_everything(config.agent.seed)
    with on_device(job.engine, job.devices[0]), torch.inference_mode():
        env = build_env(found, config, job.engine, job.devices[0], job.threads)
        if isinstance(policy, Path):
            from mjfleet.rl.runner import Runner

            @torch.inference_mode(False)
            def load(checkpoint: Path) -> None:
                runner.load(checkpoint, {"actor": True})

            with torch.inference_mode(False):
                runner = Runner(env, config.agent, job.devices[0], job.threads, found.load)
            load(policy)
            actor = runner.get_inference_policy()
            player = Player(env, actor, load, actor.reset)
            env.recorder = None  # Which it would record for a rollout.
        elif policy == "random":
            player = Player(env, lambda _: torch.randn_like(env.action), lambda _: None)
        else:
            player = Player(env, lambda _: torch.zeros_like(env.action), lambda _: None)
        torch.set_num_threads(1)  # The engine's own are at work.
        yield player


def evaluate(
    job: WorkerArgs, policy: Path | Actions | None, episodes: int, *, record: bool = False
) -> tuple[str, "Recording | None"]:
    """Play episodes.

    Args:
        job: the task and its configuration, on one device.
        policy: a checkpoint, or which actions to take instead.
        episodes: how many at least; each world plays as many as every other, from its first reset
            on, so that short episodes do not count for more than long ones.
        record: whether to record the first worlds for the length of an episode.

    Returns:
        A table of returns, lengths, reward terms and metrics, and the recording.
    """
    with playing(job, policy) as player:
        from mjfleet.rl.evaluator import play_episodes

        env = player.env
        recorder = _recorder(env) if record else None

        def after_step(dones: "torch.Tensor") -> None:
            player.forget(dones)
            if recorder:
                recorder.take()

        rows = play_episodes(env, player.act, -(-episodes // env.num_envs), after_step)
    by = policy.stem if isinstance(policy, Path) else f"{policy} actions"
    return _table(env, rows), recorder.finish(f"{job.task}, {by}") if recorder else None


def _recorder(env: "Env[Any]") -> "Recorder":
    from mjfleet.env.step_recorder import StepRecorder
    from mjfleet.video.recording import Recorder

    env.recorder = StepRecorder(num_steps=1)
    return Recorder(env, env.recorder, env.cfg.episode_seconds)


def _table(env: "Env[Any]", rows: "torch.Tensor") -> str:
    """Mean, standard deviation and range over the episodes; metrics' means are over all steps."""
    rows = rows.double()
    count = len(env.reward_names)
    terms, parts = rows[:, 1 : 1 + count], rows[:, 1 + count :]
    plain = {"return": terms.sum(dim=1), "length": rows[:, 0]}
    plain |= {f"reward/{name}": terms[:, i] for i, name in enumerate(env.reward_names)}
    lines = [(name, values, values.mean()) for name, values in plain.items()]
    for i, name in enumerate(env.metric_names):
        over, by = parts[:, 2 * i], parts[:, 2 * i + 1]
        some = by != 0
        lines.append((f"task/{name}", over[some] / by[some], over.sum() / by.sum()))
    seconds = rows[:, 0].sum().item() * env.step_dt
    text = [f"{len(rows)} episodes, {seconds / 60:.4g} minutes of simulated time", ""]
    text.append(f"{'':<26}{'mean':>10}{'deviation':>11}{'least':>10}{'most':>10}")
    for name, values, mean in lines:
        if len(values):
            numbers = (mean, values.std(correction=0), values.min(), values.max())
            columns = "{:10.4g}{:11.3g}{:10.4g}{:10.4g}".format(*map(float, numbers))
            text.append(f"{name:<26}{columns}")
    return "\n".join(text)
