"""An environment with a policy acting in it, and the table of its whole episodes.

Runs in the process that the user started. Importing this file imports nothing heavy.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mjfleet.config import TrainConfig
from mjfleet.registry import FoundTask
from mjfleet.worker.thread_limits import prepare

if TYPE_CHECKING:
    import torch

    from mjfleet.env import Env
    from mjfleet.video.video_recorder import StateRecording

Actions = Literal["zero", "random"]


@dataclass(frozen=True)
class PolicySource:
    """What to play, and with which actions."""

    found: FoundTask
    config: TrainConfig
    engine: Literal["warp", "native"]
    device: str
    num_threads: int
    """CPU threads of the native engine."""
    policy: Path | Actions
    """A checkpoint, or which actions to take instead."""


@dataclass(frozen=True)
class Player:
    """An environment and what acts in it."""

    env: "Env[Any]"
    act: Callable[[Any], "torch.Tensor"]
    """Returns actions `(num_envs, num_actions)` for observations."""
    load: Callable[[Path], object]
    """Replaces the policy by another checkpoint of the same run.

    Raises:
        UserError: it cannot be read, or belongs to other networks.
    """
    forget: Callable[["torch.Tensor"], object] = lambda dones: None
    """Clears a recurrent policy's memory where episodes have ended: `(num_envs,)`, bool."""


@contextmanager
def playing(source: PolicySource) -> Iterator[Player]:
    """Build the environment and its policy; inside the block nothing is learned."""
    prepare()
    import torch

    from mjfleet.env.factory import build_env, on_device
    from mjfleet.rl.checkpoint_files import seed_everything

    config, device, threads = source.config, source.device, source.num_threads
    seed_everything(config.agent.seed)
    with on_device(source.engine, device), torch.inference_mode():
        env = build_env(source.found, config, source.engine, device, threads)
        if isinstance(source.policy, Path):
            from mjfleet.rl.runner import Runner

            @torch.inference_mode(False)
            def load(checkpoint: Path) -> None:
                runner.load(checkpoint, {"actor": True})

            with torch.inference_mode(False):
                runner = Runner(env, config.agent, device, threads, source.found.load)
            load(source.policy)
            actor = runner.get_inference_policy()
            player = Player(env, actor, load, actor.reset)
            env.recorder = None  # The runner's, for a rollout.
        elif source.policy == "random":
            player = Player(env, lambda _: torch.randn_like(env.action), lambda _: None)
        else:
            player = Player(env, lambda _: torch.zeros_like(env.action), lambda _: None)
        torch.set_num_threads(1)  # Leaves the cores to the engine's threads.
        yield player


def evaluate(
    source: PolicySource, episodes: int, *, record: bool = False
) -> tuple[str, "StateRecording | None"]:
    """Play at least so many episodes; return a table of their sums and, if asked, a recording.

    Each world plays the same number of episodes from its first reset on, so that short episodes do
    not count for more than long ones. The recording shows the first worlds for the length of an
    episode.
    """
    with playing(source) as player:
        from mjfleet.env.step_recorder import StepRecorder
        from mjfleet.rl.evaluator import play_episodes
        from mjfleet.video.video_recorder import StateRecorder

        env, recorder = player.env, None
        if record:
            env.recorder = StepRecorder(num_steps=1)
            recorder = StateRecorder(env, env.recorder, env.cfg.episode_seconds)

        def after_step(dones: "torch.Tensor") -> None:
            player.forget(dones)
            if recorder:
                recorder.take()

        rows = play_episodes(env, player.act, -(-episodes // env.num_envs), after_step)
    policy = source.policy
    title = policy.stem if isinstance(policy, Path) else f"{policy} actions"
    recording = recorder.finish(f"{source.found.name}, {title}") if recorder else None
    return _table(env, rows), recording


def _table(env: "Env[Any]", rows: "torch.Tensor") -> str:
    """Return means, deviations and ranges over the episodes; metrics' means are over all steps."""
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
