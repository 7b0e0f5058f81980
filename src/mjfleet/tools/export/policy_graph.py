"""A policy as one graph in a file of its own, with its metadata. Runs in a worker."""

import io
import logging
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

Format = Literal["onnx", "torchscript"]

METADATA = "policy.json"
"""What the metadata is called in the file: a property of ONNX, an extra file of TorchScript."""
OBSERVATIONS, ACTIONS = "observations", "actions"
"""The graph's input and output; a recurrent network has its memory besides."""
TOLERANCE = 1e-5
"""By how much they may differ, in units of the largest action where that is above 1: float32 has
no more than seven digits."""


def make_graph(policy: Any, kind: Format, metadata: str) -> bytes:
    """The contents of a file that holds the normaliser, the network and the mean action.

    The network is rsl_rl's own version of it for this purpose. It takes `(batch, size)`
    observations, float32, for any batch, and returns `(batch, num_actions)`. A recurrent network's
    memory is inputs and outputs of ONNX, `(layers, batch, size)`; in TorchScript it is inside, for
    a batch of one, and `reset()` clears it.

    Args:
        policy: rsl_rl's model of the actor, on the CPU.
        kind: which format.
        metadata: put into the file as it is.
    """
    return (_onnx if kind == "onnx" else _torchscript)(policy, metadata)


def _onnx(policy: Any, metadata: str) -> bytes:
    import onnx

    graph = policy.as_onnx(verbose=False).eval()
    # Sizes of 1 would be taken for constants: of two worlds.
    observations, *memory = graph.get_dummy_inputs()
    inputs = (observations.repeat(2, 1), *(part.repeat(1, 2, 1) for part in memory))
    batch = torch.export.Dim("batch")
    # torchvision, which torch looks for, and torch's own parts that will change are no news here.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph,
            inputs,
            input_names=[OBSERVATIONS, *graph.input_names[1:]],
            output_names=[ACTIONS, *graph.output_names[1:]],
            dynamic_shapes=({0: batch}, *({1: batch} for _ in memory)),
            opset_version=18,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.input):
        del part.metadata_props[:]  # Lines of source code, with this machine's paths.
    onnx.helper.set_model_props(model, {METADATA: metadata})
    return model.SerializeToString()


def _torchscript(policy: Any, metadata: str) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # TorchScript is to end some day.
        graph = torch.jit.script(policy.as_jit().eval())
        torch.jit.save(graph, file, _extra_files={METADATA: metadata})
    return file.getvalue()


@torch.inference_mode()
def compare(
    policy: Any, sizes: Mapping[str, int], kind: Format, graph: bytes, count: int
) -> tuple[float, float]:
    """How far a graph's actions are from the policy's, for random observations.

    Those are drawn from a normal distribution: the normaliser's, where there is one, else the
    standard one. To a recurrent network they are one episode.

    Args:
        policy: rsl_rl's model of the actor, on the CPU.
        sizes: of each observation group.
        kind: the format.
        graph: the contents of the file.
        count: how many observations.

    Returns:
        The largest difference of an action, and the largest that is tolerated.
    """
    rows = torch.randn(count, policy.obs_dim, generator=torch.Generator().manual_seed(0))
    if policy.obs_normalization:
        rows = policy.obs_normalizer.mean + policy.obs_normalizer.std * rows
    steps = rows.view(count if policy.is_recurrent else 1, -1, policy.obs_dim)
    names = policy.obs_groups
    split = steps.split([sizes[name] for name in names], dim=2)
    policy.reset()
    expected = torch.cat(
        [policy(dict(zip(names, step, strict=True))) for step in zip(*split, strict=True)]
    )
    actions = (_play_onnx if kind == "onnx" else _play_torchscript)(graph, steps)
    tolerated = TOLERANCE * max(1.0, expected.abs().max().item())
    return (actions - expected).abs().max().item(), tolerated


def _play_onnx(graph: bytes, steps: torch.Tensor) -> torch.Tensor:
    """The actions of `(steps, batch, size)` observations, all below each other."""
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    _, *inputs = session.get_inputs()
    memory: dict[str, Any] = {
        part.name: np.zeros((part.shape[0], steps.shape[1], part.shape[2]), np.float32)
        for part in inputs
    }
    actions = []
    for step in steps:
        newest, *after = session.run(None, {OBSERVATIONS: step.numpy()} | memory)
        actions.append(torch.as_tensor(newest))
        memory = dict(zip(memory, after, strict=True))
    return torch.cat(actions)


def _play_torchscript(graph: bytes, steps: torch.Tensor) -> torch.Tensor:
    """The same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        loaded = torch.jit.load(io.BytesIO(graph))
    return torch.cat([loaded(step) for step in steps])
