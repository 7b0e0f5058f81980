"""Captures rollouts and updates as CUDA graphs: many launches become one. Runs in a worker.

A graph that cannot be captured, or that does something else than the calls, is given up with a
warning: training goes on by calls.
"""

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch

from mjfleet.env import Env
from mjfleet.rl.checkpoint_files import random_states, restore_random_states
from mjfleet.rl.pinned_state import CaptureError, PinnedState
from mjfleet.sim.simulation import no_garbage_collection

logger = logging.getLogger(__name__)

CHECKED_STEPS = 2
"""Steps of a rollout whose rewards must be those of the calls: later ones drift apart, since a GPU
adds up in no fixed order."""
CLOSE_SHARE = 0.99
"""The share of the compared values that must be close."""


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> object:
        """Do the work again, on the same tensors."""

    def pool(self) -> Any:
        """Return the memory of its temporary tensors, which other graphs may share."""


class Capture(Protocol):
    """Records work, see `capture`; tests have one that needs no GPU."""

    def __call__(
        self,
        function: Callable[[], object],
        around: Callable[[Any], AbstractContextManager[object]] = ...,
        generators: Sequence[torch.Generator] = ...,
        pool: Any = ...,
    ) -> Graph: ...


class GraphedRollout:
    """A rollout that is captured in its second call; where that fails, all are done by calls."""

    def __init__(
        self,
        env: Env[Any],
        policy: torch.nn.Module,
        storage: Any,
        roll: Callable[[], None],
        capture: Capture | None,
    ) -> None:
        """Prepare.

        Args:
            env: what `roll` steps.
            policy: the network that acts.
            storage: what `roll` fills.
            roll: collects a rollout by calls.
            capture: records it; None: nothing is captured.
        """
        self._env, self._policy, self._storage, self._roll = env, policy, storage, roll
        self._capture = capture
        self.by_calls = False
        """Whether to leave the graph out for now, so that the calls can be observed."""
        self._graph: Graph | None = None
        self._pinned = self._pin()
        self._calls = 0

    def __call__(self) -> None:
        """Collect a rollout."""
        self._calls += 1
        # The first rollout loads what must not be loaded during a capture.
        if self._capture is None or self.by_calls or self._calls == 1:
            self._roll()
        elif self._graph is None:
            self._begin(self._capture)
        else:
            self._replay(self._graph)

    def _replay(self, graph: Graph) -> None:
        try:
            self._pinned.settle()  # Whatever was replaced since, by a reset or an update.
        except CaptureError as error:
            self._give_up(error)
            self._roll()
            return
        graph.replay()
        self._env.count_steps(self._storage.num_transitions_per_env)
        self._storage.step = self._storage.num_transitions_per_env

    def _begin(self, capture: Capture) -> None:
        """Capture, and compare with what the calls do from the same state."""
        self._pinned = self._pin()
        begun = _RolloutState(self._env, self._storage, self._pinned)
        self._roll()
        expected = self._storage.rewards[:CHECKED_STEPS].clone()
        begun.restore()
        try:
            graph = capture(self._roll_pinned, self._env.sim.captured_by, [self._env.generator])
            graph.replay()
            check_close("a rollout", self._storage.rewards[:CHECKED_STEPS], expected)
            self._graph = graph
        except RuntimeError as error:
            self._give_up(error)
            begun.restore()
            self._roll()

    def _roll_pinned(self) -> None:
        """Make the calls in such a way that a graph of them can be replayed."""
        before = _host_random_states(self._env.sim.device)
        self._roll()
        self._pinned.settle()
        if _host_random_states(self._env.sim.device) != before:
            raise CaptureError("a step draws random numbers on the host")

    def _pin(self) -> PinnedState:
        return PinnedState({"env": self._env, "policy": self._policy}, ["env._steps"])

    def _give_up(self, error: Exception) -> None:
        logger.warning("rollouts are no CUDA graph, and slower for it: %s", error)
        self._graph = self._capture = None


class _RolloutState:
    """All that a rollout starts from, copied."""

    def __init__(self, env: Env[Any], storage: Any, pinned: PinnedState) -> None:
        self._env, self._storage, self._pinned = env, storage, pinned
        self._sim = {name: value.clone() for name, value in env.sim.state().items()}
        self._tensors = [(tensor, tensor.clone()) for tensor in pinned.tensors()]
        self._random = random_states(str(env.device))
        self._generator = env.generator.get_state()
        self._steps = vars(env)["_steps"]
        self._recorded = env.recorder.step if env.recorder else 0

    def restore(self) -> None:
        """Go back to it; the storage is at its first step."""
        env = self._env
        self._pinned.put_back()
        for tensor, value in self._tensors:
            tensor.copy_(value)
        env.sim.restore(self._sim)
        restore_random_states(self._random, str(env.device))
        env.generator.set_state(self._generator)
        vars(env)["_steps"] = self._steps
        self._storage.step = 0
        if env.recorder:
            env.recorder.step = self._recorded


def capture(
    function: Callable[[], object],
    around: Callable[[Any], AbstractContextManager[object]] = lambda stream: nullcontext(),
    generators: Sequence[torch.Generator] = (),
    pool: Any = None,
) -> torch.cuda.CUDAGraph:
    """Return a graph of what `function` does, which is not done by this.

    Args:
        function: called once; must not wait for the device.
        around: gives a context for the call, from the stream on which the capture runs.
        generators: of random numbers, besides the device's own.
        pool: of a graph that never runs at the same time; the two share their temporary memory.

    Raises:
        RuntimeError: it cannot be captured.
    """
    graph = torch.cuda.CUDAGraph()
    default = torch.cuda.default_generators[torch.cuda.current_device()]
    before = [(generator, generator.clone_state()) for generator in (default, *generators)]
    stream = torch.cuda.current_stream()
    for generator in generators:
        graph.register_generator_state(generator)
    try:
        with (
            no_garbage_collection(),
            torch.cuda.graph(graph, pool, capture_error_mode="thread_local"),
            around(torch.cuda.current_stream()),
        ):
            function()
    except BaseException:
        # After a failed capture, torch up to 2.13 stays on the stream of the capture, which is not
        # ordered with warp's, and up to 2.11 its generators draw no more numbers.
        torch.cuda.set_stream(stream)
        for generator, state in before:
            generator.graphsafe_set_state(state)
        raise
    return graph


def _host_random_states(device: torch.device) -> tuple[Any, ...]:
    """Return where the generators are whose numbers a graph on `device` would repeat forever."""
    numpy: Any = np.random.get_state()
    own = b"" if device.type == "cpu" else torch.get_rng_state().numpy().tobytes()
    return random.getstate(), numpy[1].tobytes(), numpy[2], own


def check_close(what: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raise CaptureError where a graph's result is not that of the calls; waits for the device."""
    close = torch.isclose(found, wanted, rtol=1e-3, atol=1e-5).float().mean().item()
    if close < CLOSE_SHARE:
        raise CaptureError(f"{what} as a graph differs in {1 - close:.0%} of its values")
