"""Steps a model by mjbatch or by MuJoCo's own batch, or trains by mjbatch's example of a Go1.

    <Python> mjbatch_driver.py <request as JSON>

Runs in a child process; for mjbatch by the Python of its own environment, which lacks mjfleet.
"""

import json
import sys
import time
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import mujoco
import numpy as np

VECTOR_STEPS = 24  # Between returns to the start: as long as a usual rollout.
SPREAD = 0.25  # Standard deviation of random controls around those of the start.
NEEDED = (
    "NUM_ENVS", "HORIZON", "DECIMATION", "EPOCHS", "MINIBATCHES", "SEED", "LR", "ACTOR", "DEVICE",
    "build_model", "Go1", "ActorCritic", "rollout", "gae", "update",
)  # fmt: skip
"""What the example has to have."""
OPTIONS = ("timestep", "integrator", "cone", "impratio", "solver", "iterations", "ls_iterations")
"""The physics settings by which the example differs from other models."""


def step(request: dict[str, Any]) -> dict[str, Any]:
    """Step worlds from the model's first keyframe on with random controls, the same in each call.

    Returns:
        steps_per_second: environment steps of all worlds, by the median over the iterations.
    """
    model = mujoco.MjModel.from_xml_path(request["mjcf"])
    worlds, stage = request["num_envs"], {}
    if request["engine"] == "mjbatch":
        batch: Any = import_module("mjbatch").Batch(model, worlds, request["threads"])
    else:
        batch = import_module("mujoco.batch").Batch(model, nsim=worlds, nthread=request["threads"])
        # Like mjbatch's, a step then ends with the integration, as that of `mujoco.mj_step` does.
        stage["stage"] = mujoco.mjtStage.mjSTAGE_NONE.value
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    names = ("qpos", "qvel", "ctrl", "qacc_warmstart", *(["act"] if model.na else []))
    fields = {name: batch.bind(name) for name in names}
    noise = np.random.default_rng(0).standard_normal((VECTOR_STEPS, worlds, model.nu))
    controls = data.ctrl + SPREAD * noise
    seconds = []
    for _ in range(request["warmup"] + request["iterations"]):
        for name, field in fields.items():
            field[:] = getattr(data, name)
        start = time.perf_counter()
        for control in controls:
            fields["ctrl"][:] = control
            batch.step(nstep=request["decimation"], **stage)
        seconds.append(time.perf_counter() - start)
    return {"steps_per_second": worlds * VECTOR_STEPS / median(seconds[request["warmup"] :])}


def load(example: str) -> Any:
    """Import the example, which is not changed."""
    path = Path(example)
    sys.path.insert(0, str(path.parent))
    return import_module(path.stem)


def describe(request: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of the example and the attributes of its model's `option` in MJCF.

    `lacks` names what it would have to have, but has not.
    """
    example = load(request["example"])
    if lacks := [name for name in NEEDED if not hasattr(example, name)]:
        return {"lacks": lacks}
    layers = [getattr(layer, "out_features", None) for layer in example.ActorCritic().actor]
    model, spec = example.build_model(), mujoco.MjSpec()
    for name in OPTIONS:
        setattr(spec.option, name, getattr(model.opt, name))
    spec.compile()
    option = ElementTree.fromstring(spec.to_xml()).find("option")
    assert option is not None
    return {
        "num_envs": example.NUM_ENVS,
        "num_steps_per_env": example.HORIZON,
        "decimation": example.DECIMATION,
        "epochs": example.EPOCHS,
        "minibatches": example.MINIBATCHES,
        "hidden": [size for size in layers if size][:-1],
        "option": option.attrib,
    }


def train(request: dict[str, Any]) -> None:
    """Train as the example's own loop does; print a line of JSON for each iteration."""
    import torch

    example = load(request["example"])
    torch.manual_seed(example.SEED)
    env = example.Go1(example.NUM_ENVS, seed=example.SEED)
    actor = example.ActorCritic().to(example.ACTOR)
    learner = example.ActorCritic().to(example.DEVICE)
    actor.load_state_dict(learner.state_dict())
    optimizer = torch.optim.Adam(learner.parameters(), example.LR, fused=True)
    for number in range(1, request["iterations"] + 1):
        start = time.perf_counter()
        batch, _ = example.rollout(actor, env)
        collected = time.perf_counter()
        example.update(learner, optimizer, batch, *example.gae(batch))
        actor.load_state_dict(learner.state_dict())
        learned = time.perf_counter()
        times = {"collect_seconds": collected - start, "learn_seconds": learned - collected}
        print(json.dumps({"iteration": number, **times}), flush=True)


def main(request: dict[str, Any]) -> None:
    """Do what the request says; a line of JSON says what has come of it."""
    match request["do"]:
        case "step":
            print(json.dumps(step(request)))
        case "describe":
            print(json.dumps(describe(request)))
        case "train":
            train(request)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
