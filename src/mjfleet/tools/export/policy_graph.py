"""A policy as one ONNX or TorchScript graph, compared with the policy. Imports torch."""

import io
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from mjfleet.errors import UserError
from mjfleet.rl.networks import image_dtypes, image_groups
from mjfleet.tools.export.mjlab_form import OBSERVATION, TIME_STEP, FollowingGraph, properties

Format = Literal["onnx", "torchscript", "mjlab"]

METADATA = "policy.json"  # In the file: a property of ONNX, an extra file of TorchScript.
OBSERVATIONS, ACTIONS = "observations", "actions"
"""The graph's input and output; a recurrent network's memory comes after them."""
COMPARED_OBSERVATIONS = 1000  # Random observations.
TOLERANCE = 1e-5
"""Difference that float32 rounding explains, relative to the largest action if that is above 1."""


def make_graph(
    policy: Any,
    sizes: Sequence[int],
    kind: Format,
    metadata: str,
    frames: Mapping[str, torch.Tensor] | None = None,
) -> bytes:
    """Return the contents of a file with the normaliser, the network and the mean action.

    The graph takes observations `(batch, size)`, float32, of any batch size, and returns `(batch,
    num_actions)`. Images are further inputs, in TorchScript one list; a policy of images alone has
    no other input. A recurrent network's memory is an input and output in ONNX, `(layers, batch,
    size)`; in TorchScript the graph holds it, for a batch of one, and `reset()` clears it. `policy`
    is the actor, one of rsl_rl's models, on the CPU; `sizes` are those of its observation groups;
    `metadata` is put into the file. For mjlab's form, `frames` are those of the clip:
    mjlab_form.py. UserError if there is no graph for the policy.
    """
    graph = _deployed(policy, sizes, "as_jit" if kind == "torchscript" else "as_onnx")
    if kind == "torchscript":
        return _torchscript(graph, metadata)
    if frames is None:
        return _onnx(graph, {METADATA: metadata})
    if policy.is_recurrent or images_of(policy):
        raise UserError("--format mjlab is for a policy without memory and without images.")
    own = properties(json.loads(metadata))
    return _onnx(FollowingGraph(graph, frames), {METADATA: metadata, **own})


def _deployed(policy: Any, sizes: Sequence[int], make: Literal["as_onnx", "as_jit"]) -> Any:
    """Return the module that is exported."""
    if make == "as_onnx" and not policy.is_recurrent:
        return _Whole(policy, sizes)
    if not policy.obs_groups:
        raise UserError("a policy that observes images alone is exported to ONNX.")
    for owner in type(policy).__mro__:
        if make in vars(owner):
            break
        if {"forward", "get_latent"} & vars(owner).keys():
            if owner.__module__.startswith("mjfleet."):
                raise UserError("a policy of SAC has no TorchScript graph: export it to ONNX.")
            name = f"{owner.__module__.rpartition('.')[2]}:{owner.__name__}"
            raise UserError(f"{name} overrides how actions are computed: give it {make}() too.")
    return policy.as_onnx(verbose=False) if make == "as_onnx" else policy.as_jit()


def images_of(policy: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape (channels, height, width) of each image that a policy observes, by group."""
    if not image_groups(policy):
        return {}
    shapes = zip(policy.obs_channels_2d, policy.obs_dims_2d, strict=True)
    return {n: (c, *size) for n, (c, size) in zip(policy.obs_groups_2d, shapes, strict=True)}


class _Whole(torch.nn.Module):
    """A policy without a memory as a graph: its numbers in one input, each image in another."""

    output_names = (ACTIONS,)

    def __init__(self, policy: Any, sizes: Sequence[int]) -> None:
        super().__init__()
        self.policy, self.sizes, self.images = policy, list(sizes), images_of(policy)
        self.input_names = [*[OBSERVATIONS] * bool(sizes), *self.images]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        groups = inputs[0].split(self.sizes, dim=1) if self.sizes else ()
        numbers = dict(zip(self.policy.obs_groups, groups, strict=True))
        images = dict(zip(self.images, inputs[bool(self.sizes) :], strict=True))
        return self.policy(numbers | images)

    def get_dummy_inputs(self) -> tuple[torch.Tensor, ...]:
        numbers = [torch.zeros(1, sum(self.sizes))] if self.sizes else []
        types = image_dtypes(self.policy)
        images = (torch.zeros(1, *size, dtype=types[k]) for k, size in self.images.items())
        return *numbers, *images


def _onnx(graph: Any, properties: Mapping[str, str]) -> bytes:
    import onnx

    inputs, names, dynamic = graph.eval().get_dummy_inputs(), graph.input_names, None
    if not isinstance(graph, FollowingGraph):  # That takes one observation at a time.
        # The exporter takes a size of 1 for a constant, so that the example is a batch of two.
        axes = [int(part.ndim == 3) for part in inputs]  # Memory is (layers, batch, size).
        inputs = tuple(torch.cat((x, x), axis) for x, axis in zip(inputs, axes, strict=True))
        batch = torch.export.Dim("batch")
        dynamic: Any = tuple({axis: batch} for axis in axes)
        if isinstance(graph, _Whole):
            dynamic = (dynamic,)  # All in one argument.
        else:
            names = [OBSERVATIONS, *names[1:]]
    # Silences warnings about missing torchvision and torch's own deprecations.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            graph,
            inputs,
            input_names=names,
            output_names=[ACTIONS, *graph.output_names[1:]],
            dynamic_shapes=dynamic,
            opset_version=18,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    for part in (*model.graph.node, *model.graph.value_info, *model.graph.input):
        del part.metadata_props[:]  # Source lines with paths of this machine.
    onnx.helper.set_model_props(model, dict(properties))
    return model.SerializeToString()


def _torchscript(module: Any, metadata: str) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # TorchScript is deprecated.
        graph = torch.jit.script(module.eval())
        torch.jit.save(graph, file, _extra_files={METADATA: metadata})
    return file.getvalue()


@torch.inference_mode()
def compare(policy: Any, sizes: Sequence[int], kind: Format, graph: bytes) -> tuple[float, float]:
    """Return the largest difference of a graph's actions from the policy's, and what is tolerated.

    Random observations, COMPARED_OBSERVATIONS in number, are drawn from the normaliser's normal
    distribution, or without one from the standard one. A recurrent network sees them as one
    episode. `sizes` are those of the policy's observation groups, `graph` is the file's content.
    """
    generator, shapes = torch.Generator().manual_seed(0), images_of(policy)
    number = COMPARED_OBSERVATIONS
    rows = torch.randn(number, policy.obs_dim, generator=generator)
    types = image_dtypes(policy)
    images = {
        name: torch.randint(0, 256, (number, *shape), generator=generator, dtype=torch.uint8)
        if types[name] == torch.uint8
        else torch.randn(number, *shape, generator=generator)
        for name, shape in shapes.items()
    }
    if policy.obs_normalization:
        rows = policy.obs_normalizer.mean + policy.obs_normalizer.std * rows
    is_single = policy.is_recurrent or kind == "mjlab"
    steps = rows.unsqueeze(1 if is_single else 0)
    policy.reset()
    groups = (zip(policy.obs_groups, step.split([*sizes], dim=1), strict=True) for step in steps)
    expected = torch.cat([policy(dict(observation) | images) for observation in groups])
    play = _play_torchscript if kind == "torchscript" else _play_onnx
    actions = play(graph, steps, images)
    tolerated = TOLERANCE * max(1.0, expected.abs().max().item())
    return (actions - expected).abs().max().item(), tolerated


Images = Mapping[str, torch.Tensor]
"""Images of one step, by group: `(batch, channels, height, width)`."""


def _play_onnx(graph: bytes, steps: torch.Tensor, images: Images) -> torch.Tensor:
    """Return the actions `(steps * batch, num_actions)` for `(steps, batch, size)` observations."""
    import onnxruntime

    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    seen = {name: image.numpy() for name, image in images.items()}
    named = {part.name for part in session.get_inputs()}
    rows = {OBSERVATIONS, OBSERVATION} & named
    first = dict.fromkeys({TIME_STEP} & named, np.zeros((1, 1), np.float32))
    inputs = [p for p in session.get_inputs() if p.name not in {*rows, *first, *seen}]
    shapes = {part.name: (part.shape[0], steps.shape[1], part.shape[2]) for part in inputs}
    memory: dict[str, Any] = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    actions = []
    for step in steps:
        given = dict.fromkeys(rows, step.numpy()) | first
        newest, *after = session.run(None, given | memory | seen)
        actions.append(torch.as_tensor(newest))
        memory = dict(zip(memory, after, strict=False))  # mjlab's form returns a frame, too.
    return torch.cat(actions)


def _play_torchscript(graph: bytes, steps: torch.Tensor, images: Images) -> torch.Tensor:
    rest = [list(images.values())] if images else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        loaded = torch.jit.load(io.BytesIO(graph))
    return torch.cat([loaded(step, *rest) for step in steps])
