"""The stacks that mjfleet is compared with, and how each is made to train the same.

Runs in the launching process.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mjfleet.bench.peers.install import mjlab_environment, mjlab_versions
from mjfleet.bench.setup import Setup
from mjfleet.bench.training import Trained, train_theirs
from mjfleet.config import TrainConfig, to_dict
from mjfleet.errors import UserError


@dataclass(frozen=True)
class Peer:
    """Another stack that trains the same."""

    name: str
    train: Callable[[TrainConfig, bool], tuple[Trained, list[str]]]
    """Trains by a configuration, with or without counting rewards; also says what differs."""
    helps: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Its counterparts of `train --help` and `train <task> --help`."""
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    compiles: bool = False
    """Whether its first run ever takes longer, because it compiles."""


@dataclass(frozen=True)
class MjlabTask:
    """mjlab's counterpart of a task, and what its configuration is to be set to."""

    name: str
    timestep: float
    """Seconds."""
    integrator: str
    notes: Sequence[str]


CARTPOLE = (
    "mjlab steps by MuJoCo-Warp on every device, in float32; its model has a ground plane in "
    "addition, and contacts are off in both.",
    "Starts differ a little: its speeds are uniform within 0.01 rad/s and m/s, here normal with "
    "that deviation.",
)
SWINGUP = (
    "Its pole starts at up to 0.034 rad from hanging, uniformly, and its cart in the middle; here "
    "both are normally distributed around that with 0.01 rad and m, as in the suite.",
)
GO1 = (
    "mjlab steps by MuJoCo-Warp on every device, in float32.",
    "Robot, commands and rewards of both are of the same kind, but each has its own, and its own "
    "noise, randomisation and observations: mjlab's policy is told the velocity of the trunk, ours "
    "sees three observations in a row. Returns do not compare.",
)
MJLAB_TASKS = {
    "cartpole-balance": MjlabTask("Mjlab-Cartpole-Balance", 0.01, "euler", CARTPOLE),
    "cartpole-swingup": MjlabTask("Mjlab-Cartpole-Swingup", 0.01, "euler", CARTPOLE + SWINGUP),
    "go1-velocity-flat": MjlabTask("Mjlab-Velocity-Flat-Unitree-Go1", 0.005, "implicitfast", GO1),
    "go1-velocity-rough": MjlabTask("Mjlab-Velocity-Rough-Unitree-Go1", 0.005, "implicitfast", GO1),
}


def mjlab(setup: Setup) -> Peer:
    """mjlab's own command `train`, on MuJoCo-Warp, which is all it has.

    Raises:
        UserError: it has no such task, or uv is missing.
    """
    task = MJLAB_TASKS.get(setup.found.name)
    if task is None:
        known = ", ".join(MJLAB_TASKS)
        raise UserError(f"mjlab has no counterpart of {setup.found.name}; of these: {known}.")
    folder = mjlab_environment(setup.scratch)
    driver = Path(__file__).with_name("mjlab_driver.py")
    command = str(folder / "bin" / "train")

    def train(config: TrainConfig, counts_rewards: bool) -> tuple[Trained, list[str]]:
        request = {
            "task": task.name,
            "num_envs": config.env.num_envs,
            "decimation": config.env.decimation,
            "episode_seconds": config.env.episode_seconds,
            "timestep": task.timestep,
            "integrator": task.integrator,
            "agent": to_dict(config.agent),
            "gpu": setup.devices.indices[0] if setup.devices.indices else None,
            "log_root": str(setup.scratch / "theirs"),
            "counts_rewards": counts_rewards,
        }
        python = str(folder / "bin" / "python")
        return train_theirs(setup, [python, str(driver), json.dumps(request)], config)

    return Peer(
        "mjlab",
        train,
        {
            "train --help": [command, "--help"],
            "train <task> --help": [command, task.name, "--help"],
        },
        mjlab_versions(folder, setup.scratch),
        task.notes,
        compiles=True,
    )


def rsl_rl(setup: Setup) -> Peer:
    """Our environment under rsl_rl's stock runner and PPO, with torch's own number of threads."""

    def train(config: TrainConfig, counts_rewards: bool) -> tuple[Trained, list[str]]:
        job = setup.job(config, setup.scratch / "theirs")
        request = json.dumps({"job": asdict(job), "counts_rewards": counts_rewards})
        module = "mjfleet.bench.peers.rsl_rl_driver"
        return train_theirs(setup, [sys.executable, "-m", module, request], config)

    note = (
        "rsl_rl has torch's default threads, whose waiting by spinning makes its updates slow "
        "where other processes want a core; the environment variable OMP_WAIT_POLICY=PASSIVE, "
        "which mjfleet sets itself, reaches it too."
    )
    return Peer("rsl_rl", train, notes=[note])


PEERS = {"mjlab": mjlab, "rsl_rl": rsl_rl}
