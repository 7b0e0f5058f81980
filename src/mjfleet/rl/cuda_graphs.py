"""What a GPU is told again and again, told once: rollouts and updates as CUDA graphs. In a worker.

A graph holds addresses: it reads and writes the tensors that its capture did. Whatever Python code
replaces meanwhile is therefore put back where it was, see `Pinned`. A graph that cannot be
captured, or that does something else than the calls that it stands for, is given up with a warning.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from tensordict import TensorDict

from mjfleet.env import Env
from mjfleet.rl.checkpoint_files import random_states, restore_random_states
from mjfleet.sim.simulation import no_garbage_collection

logger = logging.getLogger(__name__)

CHECKED_STEPS = 2
"""How many steps of a rollout must have the rewards of the calls: later ones drift apart, since a
GPU adds up in no certain order."""
ENOUGH = 0.99
"""Of the values that are compared, how many must be close."""


class CaptureError(RuntimeError):
    """Something cannot be a part of a CUDA graph."""


class Pinned:
    """The tensors among an object's attributes, which keep their addresses.

    Attributes may be tensors, modules, or dictionaries, lists and tuples of them. A number that
    changes cannot be pinned: a graph would not count on.
    """

    def __init__(self, owner: Any, counters: Sequence[str] = ()) -> None:
        """Remember the attributes of `owner`; somebody else takes care of `counters`."""
        self._owner = owner
        self._before = {k: v for k, v in vars(owner).items() if k not in counters}

    def tensors(self) -> list[torch.Tensor]:
        """All of them, each once."""
        found = [t for value in self._before.values() for t in _leaves(value)]
        return list({id(tensor): tensor for tensor in found}.values())

    def settle(self) -> None:
        """Copy what has replaced an attribute into it, and put it back in its place.

        Raises:
            CaptureError: an attribute is no tensor, or one of another form than it was.
        """
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for name, before in self._before.items():
            now = vars(self._owner)[name]
            old, new = _leaves(before), _leaves(now)
            if not old and not new:
                if isinstance(before, int | float | str) and before != now:
                    raise CaptureError(f"a step changes {name}, which is no tensor")
                continue
            if [(t.shape, t.dtype) for t in old] != [(t.shape, t.dtype) for t in new]:
                raise CaptureError(f"a step changes the shape or type of {name}")
            copies += [(o, n) for o, n in zip(old, new, strict=True) if o is not n]
            vars(self._owner)[name] = before
        # What is new in one attribute may be what was in another one: first all are read.
        values = [new.clone() for _, new in copies]
        for (old, _), value in zip(copies, values, strict=True):
            old.copy_(value)


class GraphedRollout:
    """A rollout as one graph, from its second time on; calls it as it is where that fails."""

    def __init__(self, env: Env[Any], storage: Any, roll: Callable[[], None]) -> None:
        """Stand for `roll`, which steps `env` and fills `storage`."""
        self._env, self._storage, self._roll = env, storage, roll
        self.by_calls = False
        """Whether to leave the graph out for now, so that somebody can watch the calls."""
        self._graph: Any = None
        self._calls = 0
        self._works = env.sim.device.type == "cuda"

    def __call__(self) -> None:
        """Collect a rollout."""
        if self.by_calls:
            self._captured()
            return
        self._calls += 1
        if self._graph is not None:
            self._graph.replay()
            self._env.count_steps(self._storage.num_transitions_per_env)
            self._storage.step = self._storage.num_transitions_per_env
        elif self._works and self._calls == 2:  # The first one loads what a capture may not load.
            self._begin()
        else:
            self._roll()

    def _begin(self) -> None:
        """Capture, and compare with what the calls do from the same state."""
        begun = self._state()
        self._roll()
        wanted = self._storage.rewards[:CHECKED_STEPS].clone()
        self._restore(begun)
        try:
            graph = capture(self._captured, self._env.sim.captured_by, [self._env.generator])
            graph.replay()
            check_close("a rollout", self._storage.rewards[:CHECKED_STEPS], wanted)
            self._graph = graph
        except RuntimeError as error:
            logger.warning("rollouts are no CUDA graph, and slower for it: %s", error)
            self._works = False
            self._restore(begun)
            self._roll()

    def _captured(self) -> None:
        """The calls, after which a graph can go on."""
        pinned = self._pinned()
        self._roll()
        pinned.settle()

    def _pinned(self) -> Pinned:
        return Pinned(self._env, counters=("_steps",))

    def _state(self) -> dict[str, Any]:
        """All that a rollout starts from, copied."""
        env = self._env
        return {
            "sim": {name: value.clone() for name, value in env.sim.state().items()},
            "env": [tensor.clone() for tensor in self._pinned().tensors()],
            "attributes": dict(vars(env)),
            "random": random_states(str(env.device)),
            "generator": env.generator.get_state(),
            "storage": self._storage.step,
            "history": env.recorder.step if env.recorder else 0,
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        env = self._env
        vars(env).update(state["attributes"])
        for tensor, value in zip(self._pinned().tensors(), state["env"], strict=True):
            tensor.copy_(value)
        env.sim.restore(state["sim"])
        restore_random_states(state["random"], str(env.device))
        env.generator.set_state(state["generator"])
        self._storage.step = state["storage"]
        if env.recorder:
            env.recorder.step = state["history"]


def capture(
    function: Callable[[], object],
    around: Callable[[Any], Any] = lambda stream: nullcontext(),
    generators: Sequence[torch.Generator] = (),
    pool: Any = None,
) -> Any:
    """Return a CUDA graph of what `function` does, without doing it.

    Args:
        function: called once; waits for nothing.
        around: gives a context for the call, from the stream on which the capture runs.
        generators: of random numbers, besides the device's own.
        pool: memory that the graph shares with others, which never run at the same time.

    Raises:
        RuntimeError: it cannot be captured.
    """
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    stream = torch.cuda.current_stream()
    own = torch.cuda.default_generators[stream.device_index]
    states = [(generator, generator.clone_state()) for generator in (own, *generators)]
    try:
        with (
            no_garbage_collection(),
            torch.cuda.graph(graph, pool, capture_error_mode="thread_local"),
            around(torch.cuda.current_stream()),
        ):
            function()
    except BaseException:
        # Up to torch 2.13, a failed capture leaves torch on the stream of the capture, which is not
        # ordered with warp's, and its generators (2.11) refuse to draw.
        torch.cuda.set_stream(stream)
        for generator, state in states:
            generator.graphsafe_set_state(state)
        raise
    return graph


def check_close(what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raise CaptureError where a graph's result is not that of the calls; waits for the device."""
    close = torch.isclose(found, wanted, rtol=1e-3, atol=1e-5).float().mean().item()
    if close < ENOUGH:
        raise CaptureError(f"{what} as a graph differs in {1 - close:.0%} of its values")


def _leaves(value: Any) -> list[torch.Tensor]:
    """The tensors in a value, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, TensorDict | dict):
        return [t for item in value.values() for t in _leaves(item)]
    if isinstance(value, torch.nn.Module):
        return list(value.buffers())
    if isinstance(value, list | tuple):
        return [t for item in value for t in _leaves(item)]
    return []
