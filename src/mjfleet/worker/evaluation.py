"""Whole episodes of a policy, and what they were like. Importing this imports nothing heavy."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mjfleet.config import from_dict
from mjfleet.pulse import Pulse
from mjfleet.registry import find_task
from mjfleet.worker.job import Job, Rank
from mjfleet.worker.lean import prepare
from mjfleet.worker.life import build_env, on_device

if TYPE_CHECKING:
    import torch

    from mjfleet.env import Env

Actions = Literal["zero", "random"]


def evaluate(job: Job, policy: Path | Actions | None, episodes: int) -> str:
    """Play episodes; returns a table of their returns, lengths, reward terms and metrics.

    Args:
        job: the task and its configuration, on one device.
        policy: a checkpoint, or which actions to take instead.
        episodes: how many at least; each world plays as many as every other, from its first reset
            on, so that short episodes do not count for more than long ones.
    """
    prepare()
    import torch

    from mjfleet.rl.checkpoint import seed_everything
    from mjfleet.rl.evaluation import play_episodes

    found = find_task(job.task, Path(job.task_folder))
    config = from_dict(found.defaults(), job.config)
    seed_everything(config.agent.seed)
    with on_device(job, job.devices[0]), torch.inference_mode():
        env = build_env(found, config, job, Rank(), Pulse())
        if isinstance(policy, Path):
            from mjfleet.rl.runner import Runner

            with torch.inference_mode(False):
                runner = Runner(env, config.agent, job.devices[0], job.threads, found.load)
                runner.load(str(policy), {"actor": True})
            act: Any = runner.get_inference_policy()
            env.history = None  # Which it would record for a rollout.
            after_step: Callable[[torch.Tensor], object] = act.reset
        else:
            draw = torch.randn_like if policy == "random" else torch.zeros_like
            act, after_step = lambda _: draw(env.action), lambda _: None
        torch.set_num_threads(1)  # The engine's own are at work.
        rows = play_episodes(env, act, -(-episodes // env.num_envs), after_step)
    return _table(env, rows)


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
