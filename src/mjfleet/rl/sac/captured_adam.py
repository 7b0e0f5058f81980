"""Adam in a form that a CUDA graph can hold: its rate is on the device. Runs in a worker."""

from collections.abc import Callable, Iterable, Sequence

import torch

from mjfleet.rl.device import optimizer as device_optimizer
from mjfleet.rl.device.graph_capture import Capture, Captured


class CapturedAdam:
    """Adam for some parameters, whose gradients are there; its steps become a graph.

    Attributes:
        optimizer: torch's.
        step: takes a step.
    """

    def __init__(
        self,
        name: str,
        parameters: Iterable[torch.nn.Parameter],
        rate: float,
        capture: Capture | None,
        then: Callable[[], object] = lambda: None,
        written: Sequence[torch.Tensor] = (),
    ) -> None:
        """Take parameters and their learning rate; `name` is for messages.

        `then` is called after each step, and belongs to it; it writes the tensors `written`.
        `capture` is that of Captured.
        """
        self._parameters, self._then, self._written = [*parameters], then, written
        device = self._parameters[0].device
        # On a CPU it is as exact as Python's.
        dtype = torch.float64 if device.type == "cpu" else torch.float32
        self._rate = torch.tensor(rate, dtype=dtype, device=device)
        self.optimizer = torch.optim.Adam(self._parameters, lr=rate)
        self.step = Captured(name, self._take_step, self._writes, capture)
        self.take(rate)

    @property
    def rate(self) -> float:
        """The learning rate of the next step, which the device has, too."""
        return self._host_rate

    @rate.setter
    def rate(self, value: float) -> None:
        self._host_rate = value
        self._rate.fill_(value)

    def take(self, rate: float) -> None:
        """Continue with the learning rate of the optimiser's loaded state."""
        self.rate = rate
        device_optimizer.prepare(self.optimizer, self._rate)
        self.step.forget()

    def _take_step(self) -> None:
        self.optimizer.step()
        self._then()

    def _writes(self) -> list[torch.Tensor]:
        states = device_optimizer.state_tensors(self.optimizer)
        return [*self._parameters, *states, *self._written]
