"""An environment with a policy acting in it, and the table of its whole episodes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mjfleet.config import TrainConfig
from mjfleet.launch.launch_plan import LaunchPlan
from mjfleet.registry import FoundTask
from mjfleet.tools.trained_policy import build, load_policy
from mjfleet.utils.console import print_line
from mjfleet.worker.thread_limits import import_prepared

if TYPE_CHECKING:
    import torch

    from mjfleet.env import Env
    from mjfleet.video.state_recording import StateRecorder

Actions = Literal["zero", "random"]
STATISTIC_COLUMNS = "mean", "std", "min", "max"


@dataclass(frozen=True)
class Player:
    """An environment and what acts in it."""

    env: "Env[Any]"
    act: Callable[[Any], "torch.Tensor"]
    """Returns actions `(num_envs, num_actions)` for observations."""
    load: Callable[[Path], object] = lambda checkpoint: None
    """Replaces the policy by another checkpoint; UserError if it is damaged or does not fit."""
    forget: Callable[["torch.Tensor"], object] = lambda dones: None
    """Clears a recurrent policy's memory where episodes have ended: `(num_envs,)`, bool."""

    def step(self) -> "torch.Tensor":
        """Take a step; return where episodes have ended."""
        _, _, dones, _ = self.env.step(self.act(self.env.get_observations()))
        self.forget(dones)
        return dones


@contextmanager
def playing(
    found: FoundTask, config: TrainConfig, plan: LaunchPlan, policy: Path | Actions
) -> Iterator[Player]:
    """Build the environment and its policy, a checkpoint; inside the block nothing is learned."""
    modules = ["rl.build_algorithm"] if isinstance(policy, Path) else []
    import_prepared(plan.device, "env.factory", f"sim.{plan.engine}_engine", *modules)
    import torch

    from mjfleet.env.factory import on_device
    from mjfleet.env.random_numbers import seed_everything
    from mjfleet.rl.checkpoints import files as checkpoint_files

    engine, device, threads = plan.engine, plan.device, plan.threads
    seed_everything(config.agent.seed)
    with on_device(engine, device):
        if isinstance(policy, Path):
            env, actor, _ = load_policy(found, config, policy, engine, device, threads)
            load = torch.inference_mode(False)(
                lambda path: checkpoint_files.load_policy(path, actor)
            )
            player = Player(env, actor, load, actor.reset)
        else:
            make = torch.randn_like if policy == "random" else torch.zeros_like
            env = build(found, config, engine, device, threads)
            player = Player(env, lambda _: make(env.action))
        torch.set_num_threads(1)  # Leaves the cores to the engine's threads.
        with torch.inference_mode():
            yield player


@dataclass(frozen=True)
class EpisodeSums:
    """What whole episodes have given."""

    episodes: int
    minutes: float  # Minutes of simulated time.
    numbers: Mapping[str, Mapping[str, float]]
    """The STATISTIC_COLUMNS over the episodes, by name. Metrics' means are over all steps."""

    @property
    def table(self) -> str:
        """The numbers as a table of lines for a terminal."""
        text = [f"{self.episodes} episodes, {self.minutes:.4g} minutes of simulated time", ""]
        text.append("{:<26}{:>10}{:>11}{:>10}{:>10}".format("", *STATISTIC_COLUMNS))
        for name, numbers in self.numbers.items():
            # A space stands before each number, which may be as wide as -1.234e-05.
            columns = " {:9.4g} {:10.3g} {:9.4g} {:9.4g}".format(*numbers.values())
            text.append(f"{name:<26}{columns}")
        return "\n".join(text)


def evaluate(player: Player, count: int, recorder: "StateRecorder | None" = None) -> EpisodeSums:
    """Play at least `count` episodes, and as many as `recorder` wants to see; return their sums.

    Each environment plays the same number of episodes from its first reset on, so that short
    episodes do not count for more than long ones.
    """
    from mjfleet.rl.checks.simulation_warnings import describe_now
    from mjfleet.rl.evaluation.evaluator import Episodes

    env = player.env
    episodes = Episodes(env, player.act, -(-count // env.num_envs), player.forget)
    rows = episodes.play(recorder.take if recorder else lambda: None)
    while recorder and not recorder.is_complete:  # The video is longer than the episodes.
        player.step()
        recorder.take()
    for text in describe_now(env.sim):
        print_line(f"warning: {text}")
    return sum_up(env, rows)


def sum_up(env: "Env[Any]", rows: "torch.Tensor") -> EpisodeSums:
    """Sum up the rows of `Episodes.play`, except those that do not count."""
    counts, num_rows, num_terms = rows[:, 0].isfinite(), len(rows), len(env.reward_names)
    rows = rows[counts].double()
    lengths, terms, parts = rows[:, 0], rows[:, 1 : 1 + num_terms], rows[:, 1 + num_terms :]
    returns, means, sums = terms.sum(dim=1), dict[str, Any](), dict[str, Any]()
    values = {"return": returns, "length": lengths}
    values |= {f"reward/{k}": v for k, v in zip(env.reward_names, terms.T, strict=True)}
    for name, over, by in zip(env.metric_names, parts.T[::2], parts.T[1::2], strict=True):
        values[f"task/{name}"] = (over / by)[by != 0]
        means[f"task/{name}"], sums[f"task/{name}"] = over.sum() / by.sum(), (over, by)
    if levels := env.evaluated:
        played = levels.of_envs.repeat(num_rows // env.num_envs)[counts]
        where = {n: levels.names[n] if levels.names else f"level {n}" for n in levels.numbers}
        for n, name in where.items():
            values[f"return on {name}"] = returns[played == n]
            for key in sums if levels.names else ():
                over, by = (part[played == n] for part in sums[key])
                values[f"{key.removeprefix('task/')} on {name}"] = (over / by)[by != 0]
                means[f"{key.removeprefix('task/')} on {name}"] = over.sum() / by.sum()
    numbers = {}
    for name, column in values.items():
        if len(column):
            mean = means.get(name, column.mean())
            found = (mean, column.std(correction=0), column.min(), column.max())
            numbers[name] = dict(zip(STATISTIC_COLUMNS, map(float, found), strict=True))
    return EpisodeSums(len(rows), lengths.sum().item() * env.step_dt / 60, numbers)
