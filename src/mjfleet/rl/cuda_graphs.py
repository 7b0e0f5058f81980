"""Captures rollouts and updates as CUDA graphs: one launch replaces many. Runs in a worker.

If a graph cannot be captured, or its results differ from those of the calls, training continues by
calls, with a warning.
"""

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from mjfleet.env import Env
from mjfleet.env.random_numbers import random_states, restore_random_states
from mjfleet.rl.pinned_state import CaptureError, PinnedState
from mjfleet.sim.simulation import no_garbage_collection

logger = logging.getLogger(__name__)

CHECKED_STEPS = 2
"""Steps of a rollout whose rewards are compared with those of the calls. Later steps drift apart,
because a GPU adds in no fixed order."""
CLOSE_SHARE = 0.99
"""The fraction of the compared values that must be close."""
Capture = Callable[..., Any]
"""`capture`, or what takes its place in tests without a GPU."""


class GraphedRollout:
    """A rollout that is captured in its second call. If that fails, calls are made instead."""

    def __init__(
        self,
        env: Env[Any],
        policy: torch.nn.Module,
        storage: Any,
        roll: Callable[[], None],
        capture: Capture | None,
    ) -> None:
        """Capture `roll`, by which `policy` acts in `env` and fills `storage`. None: never."""
        self._env, self._policy, self._storage, self._roll = env, policy, storage, roll
        self._capture = capture
        self.by_calls = False  # Whether to make the calls for now, so that they can be observed.
        self._captured: tuple[Any, PinnedState] | None = None
        self._layout = 0  # The simulation's, of the capture.
        self._calls = 0

    def __call__(self) -> None:
        """Collect a rollout."""
        self._calls += 1
        # The first rollout loads kernels, which is not allowed during a capture.
        if self._capture is None or self.by_calls or self._calls == 1:
            self._roll()
        elif self._captured is None or self._layout != self._env.sim.layout:
            self._capture_rollout(self._capture)
        else:
            self._replay(*self._captured)

    def _replay(self, graph: Any, pinned: PinnedState) -> None:
        try:
            pinned.settle()  # Resets and updates may have replaced tensors.
        except CaptureError as error:
            self._give_up(error)
            self._roll()
            return
        graph.replay()
        self._env.count_steps(self._storage.num_transitions_per_env)
        self._storage.step = self._storage.num_transitions_per_env

    def _capture_rollout(self, capture: Capture) -> None:
        """Capture a rollout, and compare it with the calls from the same state."""
        self._captured, self._layout = None, self._env.sim.layout
        pinned = PinnedState({"env": self._env, "policy": self._policy}, ["env._steps"])
        restore = _remember(self._env, self._storage, pinned)
        self._roll()
        expected = self._storage.rewards[:CHECKED_STEPS].clone()
        restore()
        try:
            roll = partial(self._roll_pinned, pinned)
            graph = capture(roll, self._env.sim.captured_by, [self._env.generator])
            graph.replay()
            check_close("a rollout", self._storage.rewards[:CHECKED_STEPS], expected)
            self._captured = graph, pinned
        except RuntimeError as error:
            self._give_up(error)
            restore()
            self._roll()

    def _roll_pinned(self, pinned: PinnedState) -> None:
        """Make the calls and check that a graph of them can be replayed."""
        before = _host_random_states(self._env.sim.device)
        self._roll()
        pinned.settle()
        if _host_random_states(self._env.sim.device) != before:
            raise CaptureError("a step draws random numbers on the host")

    def _give_up(self, error: Exception) -> None:
        logger.warning("rollouts are no CUDA graph, and slower for it: %s", error)
        self._captured = self._capture = None


def _remember(env: Env[Any], storage: Any, pinned: PinnedState) -> Callable[[], None]:
    """Return a function that restores the state of now, with the storage at its first step."""
    device, attributes = str(env.device), vars(env)
    fields = {name: value.clone() for name, value in env.sim.state().items()}
    tensors = [(tensor, tensor.clone()) for tensor in pinned.tensors()]
    host, generator = random_states(device), env.generator.get_state()
    steps, recorded = attributes["_steps"], env.recorder.step if env.recorder else 0

    def restore() -> None:
        pinned.put_back()
        for tensor, value in tensors:
            tensor.copy_(value)
        env.sim.restore(fields)
        restore_random_states(host, device)
        env.generator.set_state(generator)
        attributes["_steps"] = steps
        storage.step = 0
        if env.recorder:
            env.recorder.step = recorded

    return restore


def capture(
    function: Callable[[], object],
    around: Callable[[Any], AbstractContextManager[object]] = lambda stream: nullcontext(),
    generators: Sequence[torch.Generator] = (),
    pool: Any = None,
) -> torch.cuda.CUDAGraph:
    """Return a graph of the operations of `function`, which are not executed now.

    Args:
        function: called once. It must not wait for the device.
        around: returns a context for the call, given the stream of the capture.
        generators: random generators that are used, besides the device's own.
        pool: the pool of a graph that never runs at the same time. The two share memory.

    Raises:
        RuntimeError: the function cannot be captured.
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
        # After a failed capture, torch up to 2.13 stays on the capture's stream, which is not
        # synchronised with warp's, and up to 2.11 its generators cannot draw any more.
        torch.cuda.set_stream(stream)
        for generator, state in before:
            generator.graphsafe_set_state(state)
        raise
    return graph


def _host_random_states(device: torch.device) -> tuple[Any, ...]:
    """Return the states of the generators whose numbers a graph on `device` would repeat."""
    numpy: Any = np.random.get_state()
    own = b"" if device.type == "cpu" else torch.get_rng_state().numpy().tobytes()
    return random.getstate(), numpy[1].tobytes(), numpy[2], own


def check_close(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise CaptureError if a graph's results differ from those of the calls.

    Waits for the device.
    """
    close = torch.isclose(found, expected, rtol=1e-3, atol=1e-5).float().mean().item()
    if close < CLOSE_SHARE:
        raise CaptureError(f"{what} as a graph differs in {1 - close:.0%} of its values")
