"""What an environment remembers: state that it declares, in a few buffers. Runs in a worker.

From the declarations follow what a reset fills, what a checkpoint holds, and what the environments
of a group take over.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import torch

from mjfleet.errors import UserError

Reset = float | Literal["keep"] | Callable[[torch.Tensor], torch.Tensor]
"""What a reset does to a state: write a value, nothing, or what a function of the mask returns."""


@dataclass
class Buffer:
    """The states of one dtype and kind, one after the other: each is `(num_envs, *size)`."""

    flat: torch.Tensor  # All numbers, `(n,)`.
    offsets: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """Where each state begins, and its size in each environment, by name."""
    values: list[float] = field(default_factory=list)
    """What a reset writes into each state."""
    env: torch.Tensor | None = None  # To which environment each number belongs, `(n,)`, long.
    fill: torch.Tensor | None = None  # What a reset writes into each number, `(n,)`.


class StateBuffers:
    """The declared state of `num_envs` environments; `Env.add_state` describes the arguments."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._num_envs, self._device = num_envs, device
        self._buffers: dict[str, Buffer] = {}
        self._drawn: list[tuple[str, torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]] = []
        self.shared: dict[str, torch.Tensor] = {}
        """State that belongs to no single environment, by name."""
        self.tensors: dict[str, torch.Tensor] = {}
        """All state by name, the shared included."""

    def add(
        self,
        name: str,
        size: tuple[int, ...],
        dtype: torch.dtype,
        reset: Reset = 0.0,
        start: torch.Tensor | float | None = None,
        is_shared: bool = False,
        is_persistent: bool = True,
    ) -> torch.Tensor:
        """Declare a state, and return its tensor."""
        self._check(name, size)
        shape = size if is_shared else (self._num_envs, *size)
        if start is None:
            start = 0.0 if callable(reset) or reset == "keep" else reset
        try:
            first = torch.as_tensor(start, dtype=dtype, device=self._device).expand(shape)
        except (RuntimeError, TypeError, ValueError):
            raise UserError(f"add_state({name!r}): `start` must be {shape} or a number.") from None
        with torch.inference_mode(False):
            if is_shared:
                tensor = self.shared[name] = first.clone()
            else:
                is_filled = not (callable(reset) or reset == "keep")
                kind = "filled" if is_filled else "kept"
                key = f"{str(dtype).removeprefix('torch.')} {kind}{'' if is_persistent else ' new'}"
                value = float(reset) if is_filled else 0.0  # pyright: ignore[reportArgumentType]
                tensor = self._append(key, name, size, dtype, value).copy_(first)
        if callable(reset):
            self._drawn.append((name, tensor, reset))
        self.tensors[name] = tensor
        return tensor

    def reset(self, mask: torch.Tensor) -> None:
        """Write what a reset writes where `mask` `(num_envs,)` is true."""
        for key, buffer in self._buffers.items():
            if "filled" in key:
                env, fill = self._indices(buffer)
                torch.where(mask.index_select(0, env), fill, buffer.flat, out=buffer.flat)
        for name, tensor, draw in self._drawn:
            drawn = draw(mask)
            if drawn.shape != tensor.shape:
                raise UserError(
                    f"add_state({name!r}): its `reset` returns {tuple(drawn.shape)}; it must "
                    f"return {tuple(tensor.shape)}."
                )
            where = mask.view(-1, *[1] * (tensor.ndim - 1))
            tensor.copy_(torch.where(where, drawn.to(tensor.dtype), tensor))

    def take_over(self, source: torch.Tensor) -> None:
        """Give each environment the state of another: `source` `(num_envs,)`, long, says which."""
        for buffer in self._buffers.values():
            for tensor in self._views(buffer).values():
                tensor.copy_(tensor.index_select(0, source))

    def buffers(self) -> list[torch.Tensor]:
        """Return the memory of all state."""
        return [*(buffer.flat for buffer in self._buffers.values()), *self.shared.values()]

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all that is persistent, and the layout of the buffers."""
        kept = {k: buffer for k, buffer in self._buffers.items() if not k.endswith(" new")}
        return {
            "buffers": {key: buffer.flat.clone() for key, buffer in kept.items()},
            "layout": {key: self._layout(buffer) for key, buffer in kept.items()},
            "shared": {name: tensor.clone() for name, tensor in self.shared.items()},
        }

    def load_shared(self, saved: Mapping[str, Any]) -> list[str]:
        """Restore the shared state that `state_dict` returned; return the names it lacks."""
        return [name for name in self.shared if not self._load(name, saved["shared"].get(name))]

    def load_state_dict(self, saved: Mapping[str, Any]) -> list[str]:
        """Restore what `state_dict` returned for as many environments; return the names it lacks.

        Raises:
            ValueError, TypeError, KeyError, RuntimeError: it is not what `state_dict` returns.
        """
        lost, num_envs = self.load_shared(saved), self._num_envs
        for key, buffer in self._buffers.items():
            if key.endswith(" new"):
                continue
            flat, layout = saved["buffers"].get(key), saved["layout"].get(key, {})
            if layout == self._layout(buffer) and flat.shape == buffer.flat.shape:
                buffer.flat.copy_(flat)
                continue
            there = {
                name: flat[first : first + num_envs * prod(size)].view(num_envs, *size)
                for name, (first, *size) in layout.items()
            }
            lost += [name for name in buffer.offsets if not self._load(name, there.get(name))]
        return lost

    def _load(self, name: str, saved: Any) -> bool:
        tensor = self.tensors[name]
        if not isinstance(saved, torch.Tensor) or saved.shape != tensor.shape:
            return False
        tensor.copy_(saved)
        return True

    def _check(self, name: str, size: tuple[int, ...]) -> None:
        what = f"add_state({name!r})"
        if name in self.tensors:
            raise UserError(f"{what} is called twice.")
        if not all(isinstance(part, int) and part > 0 for part in size):
            raise UserError(f"{what}: its size is {size}; it must be whole numbers above 0.")

    def _append(
        self, key: str, name: str, size: tuple[int, ...], dtype: torch.dtype, value: float
    ) -> torch.Tensor:
        """Return the tensor of a new state at the end of a buffer, whose other views stay valid."""
        empty = torch.empty(0, dtype=dtype, device=self._device)
        buffer = self._buffers.setdefault(key, Buffer(empty))
        first, count = len(buffer.flat), self._num_envs * prod(size)
        storage = buffer.flat.untyped_storage()
        storage.resize_((first + count) * dtype.itemsize)
        longer: Any = torch.empty(0, dtype=dtype, device=self._device)
        buffer.flat = longer.set_(storage, 0, (first + count,))
        buffer.offsets[name] = first, size
        buffer.values.append(value)
        return buffer.flat[first:].view(self._num_envs, *size)

    def _views(self, buffer: Buffer) -> dict[str, torch.Tensor]:
        return {name: self.tensors[name] for name in buffer.offsets}

    def _layout(self, buffer: Buffer) -> dict[str, list[int]]:
        return {name: [first, *size] for name, (first, size) in buffer.offsets.items()}

    def _indices(self, buffer: Buffer) -> tuple[torch.Tensor, torch.Tensor]:
        """Return to which environment each number belongs, and what a reset writes into it."""
        if buffer.env is None or buffer.fill is None or len(buffer.env) != len(buffer.flat):
            envs = torch.arange(self._num_envs, device=self._device)
            sizes = [prod(size) for _, size in buffer.offsets.values()]
            fills = zip(buffer.values, sizes, strict=True)
            buffer.env = torch.cat([envs.repeat_interleave(size) for size in sizes])
            buffer.fill = torch.cat(
                [buffer.flat.new_full((self._num_envs * size,), value) for value, size in fills]
            )
        return buffer.env, buffer.fill
