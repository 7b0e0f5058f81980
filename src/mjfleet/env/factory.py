"""Builds a task's environment over its simulation, in every process that steps a task."""

import copy
import os
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import mujoco
import torch

from mjfleet.config import EnvConfig, TrainConfig
from mjfleet.env.env_shard import EnvShard
from mjfleet.env.environment import Env
from mjfleet.env.random_numbers import own_random_numbers
from mjfleet.env.return_checks import observation_sizes
from mjfleet.errors import UserError
from mjfleet.registry import FoundTask
from mjfleet.sim import make_simulation
from mjfleet.sim.buffer_use import overflow_texts
from mjfleet.sim.device_memory import check_fits
from mjfleet.utils.same_folder import same_folder

MEASURED_ENVS, MEASURED_STEPS = 64, 32
"""Size of the short run that measures what room contacts and constraints need."""


@same_folder()
def build_env(
    found: FoundTask,
    config: TrainConfig,
    engine: Literal["warp", "native"],
    device: str,
    num_threads: int,
    *,
    rank: int = 0,
    shard: EnvShard | None = None,
    group_size: int = 1,
    runs: Sequence[Path] = (),
    while_compiling: Callable[[], AbstractContextManager[object]] = nullcontext,
    first_images: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Env[Any]:
    """Build a task's environment; call it inside `on_device`.

    Args:
        engine: steps the simulation.
        device: torch's name of the device.
        num_threads: CPU threads of the native engine.
        rank: number of the worker, whose training environments have a seed of their own.
        shard: see Env; None: for training.
        group_size: see Env.
        runs: folders with copies of the files that the configuration names.
        while_compiling: surrounds what may compile kernels.
        first_images: surrounds the first rendering of each view, likewise.

    Raises:
        UserError: the task's class, or its sizes, are not what they have to be, or a package that
            it needs is missing.
    """
    found.check_packages()
    env_class = found.load(found.task.env_class)
    if not (isinstance(env_class, type) and issubclass(env_class, Env)):
        raise UserError(f"task {found.name}: {found.task.env_class} is not a subclass of Env.")
    if missing := sorted(env_class.__abstractmethods__):
        raise UserError(f"task {found.name}: {env_class.__name__} lacks {', '.join(missing)}.")
    num_envs, seed = config.env.num_envs, config.agent.seed + rank
    if shard is not None:
        num_envs, seed = shard.count, shard.seed
    cfg, places = replace(config.env, num_envs=num_envs), (found.folder, *runs)
    model = _make_model(env_class, cfg)
    if device == "cpu":
        state = model.nq + 2 * model.nv + model.na + model.nu + 6 * model.nbody
        check_fits(f"the states of {num_envs} environments", 4 * num_envs * state, num_envs)
    with while_compiling():
        if engine == "warp" and None in (cfg.nconmax, cfg.njmax):
            cfg = _with_room(cfg, config, env_class, model, device, places)
        sim = make_simulation(
            engine,
            model,
            num_envs,
            device=device,
            num_threads=num_threads,
            nconmax=cfg.nconmax,
            njmax=cfg.njmax,
            deterministic=config.deterministic,
        )
        sim.while_compiling = first_images
        env = env_class(cfg, sim, seed, shard, group_size, places)
        sim.while_compiling = nullcontext  # Later, workers may render what others do not.
    env.on_nan = config.on_nan
    built = {"num_actions": env.num_actions, "observation_sizes": observation_sizes(env)}
    for what, found_size in built.items():
        if (declared := getattr(found.task, what)) not in (None, found_size):
            raise UserError(
                f"task {found.name}: config.py declares {what}={declared!r}, but the environment "
                f"has {found_size}."
            )
    found.check_groups(config, observation_sizes(env))
    return env


def _make_model(env_class: type[Env[Any]], cfg: EnvConfig) -> mujoco.MjModel:
    """Return a task's model; raise UserError if it is none, or MuJoCo cannot compile it."""
    what = f"{env_class.__name__}.make_model()"
    try:
        model: object = env_class.make_model(cfg)
    except ValueError as error:
        if not re.match("XML|ParseXML|Error", str(error)):  # As MuJoCo's own begin.
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(f"{what}, {place.filename}, line {place.lineno}: {error}") from None
    if not isinstance(model, mujoco.MjModel):
        raise UserError(
            f"{what} returns {type(model).__name__}; it must return a mujoco.MjModel: that of a "
            "mujoco.MjSpec is spec.compile()."
        )
    return model


def _with_room(
    cfg: EnvConfig,
    config: TrainConfig,
    env_class: type[Env[Any]],
    model: Any,
    device: str,
    places: Sequence[Path],
) -> EnvConfig:
    """Return `cfg` with ample room for contacts and constraints where it says None.

    A few environments take random actions for some steps, as an untrained policy does.
    """
    count = min(config.env.num_envs, MEASURED_ENVS)
    std = config.agent.actor.distribution.init_std
    names = "nconmax", "njmax"
    given = {name: getattr(cfg, name) for name in names}
    with own_random_numbers(config.agent.seed, device), torch.inference_mode():
        sim = make_simulation("warp", copy.copy(model), count, device=device, **given)
        env = env_class(replace(cfg, num_envs=count), sim, config.agent.seed, places=places)
        env.on_nan = "reset"
        overflows: object = True
        while overflows:  # The room has then been enlarged.
            env.reset()
            for _ in range(MEASURED_STEPS):
                env.step(std * torch.randn_like(env.action))
            found = sim.warnings()
            overflows = overflow_texts([sim.buffer_use], [found])
            if overflows and sim.buffer_use and sim.buffer_use.is_full:
                raise UserError("; ".join(overflows.values()))
    assert sim.buffer_use is not None
    return replace(cfg, **{name: given[name] or sim.buffer_use.ample(name) for name in names})


@contextmanager
def on_device(engine: Literal["warp", "native"], device: str) -> Iterator[None]:
    """Make `device` the default of torch, rendering and warp, before anything is allocated.

    Raises:
        UserError: torch does not see the GPU.
    """
    if device != "cpu":
        index, count = int(device.removeprefix("cuda:")), torch.cuda.device_count()
        if index >= count:
            raise UserError(
                f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees {count} GPUs, so not "
                f"index {index}: look at the driver and at CUDA_VISIBLE_DEVICES (of MIG devices, a "
                "process sees one), or use --gpu-ids None."
            )
        torch.cuda.set_device(device)
        # MuJoCo takes this for an index into the visible GPUs, as torch does.
        os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", str(index))
    if engine != "warp":
        yield
        return
    import warp as wp

    from mjfleet.sim.warp_start import start_warp

    start_warp(device)
    with wp.ScopedDevice(device):  # For what a task calls itself, too.
        yield
