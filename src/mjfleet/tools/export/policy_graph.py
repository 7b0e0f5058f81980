"""A policy as one ONNX or TorchScript graph, compared with the policy. Imports torch."""

import io
import logging
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

Format = Literal["onnx", "torchscript"]

METADATA = "policy.json"  # In the file: a property of ONNX, an extra file of TorchScript.
OBSERVATIONS, ACTIONS = "observations", "actions"
"""The graph's input and output; a recurrent network's memory comes after them."""
COMPARED = 1000  # Random observations.
TOLERANCE = 1e-5
"""Difference that float32 rounding explains, relative to the largest action if that is above 1."""


def make_graph(policy: Any, kind: Format, metadata: str) -> bytes:
    """Return the contents of a file with the normaliser, the network and the mean action.

    The graph is rsl_rl's own for deployment. It takes observations `(batch, size)`, float32, of any
    batch size, and returns `(batch, num_actions)`. A recurrent network's memory is an input and
    output in ONNX, `(layers, batch, size)`; in TorchScript the graph holds it, for a batch of one,
    and `reset()` clears it. `policy` is rsl_rl's model of the actor, on the CPU; `metadata` is put
    into the file.
    """
    return (_onnx if kind == "onnx" else _torchscript)(policy, metadata)


def _onnx(policy: Any, metadata: str) -> bytes:
    import onnx

    graph = policy.as_onnx(verbose=False).eval()
    # The exporter takes a size of 1 for a constant, so that the example is a batch of two.
    observations, *memory = graph.get_dummy_inputs()
    inputs = (observations.repeat(2, 1), *(part.repeat(1, 2, 1) for part in memory))
    batch = torch.export.Dim("batch")
    # Silences warnings about missing torchvision and torch's own deprecations.
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
        del part.metadata_props[:]  # Source lines with paths of this machine.
    onnx.helper.set_model_props(model, {METADATA: metadata})
    return model.SerializeToString()


def _torchscript(policy: Any, metadata: str) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # TorchScript is deprecated.
        graph = torch.jit.script(policy.as_jit().eval())
        torch.jit.save(graph, file, _extra_files={METADATA: metadata})
    return file.getvalue()


@torch.inference_mode()
def compare(policy: Any, sizes: Sequence[int], kind: Format, graph: bytes) -> tuple[float, float]:
    """Return the largest difference of a graph's actions from the policy's, and what is tolerated.

    COMPARED random observations are drawn from the normaliser's normal distribution, or without one
    from the standard one. A recurrent network sees them as one episode. `sizes` are those of the
    policy's observation groups, `graph` is the content of the file.
    """
    rows = torch.randn(COMPARED, policy.obs_dim, generator=torch.Generator().manual_seed(0))
    if policy.obs_normalization:
        rows = policy.obs_normalizer.mean + policy.obs_normalizer.std * rows
    steps = rows.view(COMPARED if policy.is_recurrent else 1, -1, policy.obs_dim)
    policy.reset()
    groups = (zip(policy.obs_groups, step.split(sizes, dim=1), strict=True) for step in steps)
    expected = torch.cat([policy(dict(observation)) for observation in groups])
    actions = (_play_onnx if kind == "onnx" else _play_torchscript)(graph, steps)
    tolerated = TOLERANCE * max(1.0, expected.abs().max().item())
    return (actions - expected).abs().max().item(), tolerated


def _play_onnx(graph: bytes, steps: torch.Tensor) -> torch.Tensor:
    """Return the actions `(steps * batch, num_actions)` for `(steps, batch, size)` observations."""
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    _, *inputs = session.get_inputs()
    shapes = {part.name: (part.shape[0], steps.shape[1], part.shape[2]) for part in inputs}
    memory: dict[str, Any] = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    actions = []
    for step in steps:
        newest, *after = session.run(None, {OBSERVATIONS: step.numpy()} | memory)
        actions.append(torch.as_tensor(newest))
        memory = dict(zip(memory, after, strict=True))
    return torch.cat(actions)


def _play_torchscript(graph: bytes, steps: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        loaded = torch.jit.load(io.BytesIO(graph))
    return torch.cat([loaded(step) for step in steps])
