"""What an environment remembers: state that its `setup` declares. Runs in a worker.

From the declarations follow what a reset fills, what a checkpoint holds, and what the environments
of a GRPO group take over.
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
class Rows:
    """All states of one dtype. The numbers of an environment are a column."""

    numbers: torch.Tensor  # `(rows, num_envs)`
    fill: torch.Tensor  # What a reset writes into a row, `(rows, 1)`.
    is_filled: torch.Tensor  # Whether a reset writes it, `(rows, 1)`, bool.
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Size in each environment by name, in the order of the rows."""


class States:
    """The declared state of `num_envs` environments; `Env.add_state` describes the arguments."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._num_envs, self._device = num_envs, device
        self._rows: dict[torch.dtype, Rows] = {}
        self._drawn: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        self._passing: set[str] = set()  # Names of what no checkpoint holds.
        self.shared: dict[str, torch.Tensor] = {}
        self.of_envs: dict[str, torch.Tensor] = {}
        """State of the environments by name, each `(num_envs, *size)`."""

    def get(self, name: str) -> torch.Tensor | None:
        """Return the tensor of a state, shared or not."""
        return self.of_envs.get(name, self.shared.get(name))

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
        what = f"add_state({name!r})"
        if self.get(name) is not None:
            raise UserError(f"{what} is called twice.")
        if not all(isinstance(part, int) and part > 0 for part in size):
            raise UserError(f"{what}: its size is {size}; it must be whole numbers above 0.")
        is_filled = isinstance(reset, int | float)
        if not (is_filled or reset == "keep" or callable(reset)):
            raise UserError(
                f'{what}: `reset` is {reset!r}; it must be a number, "keep", or a function of the '
                "mask."
            )
        shape = size if is_shared else (self._num_envs, *size)
        value = reset if is_filled else 0.0
        try:
            first = torch.as_tensor(value if start is None else start, device=self._device)
            first = first.to(dtype).expand(shape)
        except (RuntimeError, TypeError, ValueError):
            raise UserError(f"{what}: `start` must be {shape} or a number.") from None
        with torch.inference_mode(False):
            if is_shared:
                tensor = self.shared[name] = first.clone()
            else:
                tensor = self.of_envs[name] = self._append(name, size, dtype, value, is_filled)
                tensor.copy_(first)
        if callable(reset):
            self._drawn[name] = reset
        if not is_persistent:
            self._passing.add(name)
        return tensor

    def reset(self, mask: torch.Tensor) -> None:
        """Write what a reset writes where `mask` `(num_envs,)` is true."""
        for rows in self._rows.values():
            torch.where(mask & rows.is_filled, rows.fill, rows.numbers, out=rows.numbers)
        for name, draw in self._drawn.items():
            drawn, tensor = draw(mask), self.of_envs[name]
            if not isinstance(drawn, torch.Tensor) or drawn.shape != tensor.shape:
                found = getattr(drawn, "shape", type(drawn).__name__)
                found = tuple(found) if isinstance(found, torch.Size) else found
                raise UserError(
                    f"add_state({name!r}): its `reset` returns {found}; it must return "
                    f"{tuple(tensor.shape)}."
                )
            where = mask.view(-1, *[1] * (tensor.ndim - 1))
            tensor.copy_(torch.where(where, drawn.to(tensor.dtype), tensor))

    def take_over(self, source: torch.Tensor) -> None:
        """Give each environment the state of another: `source` `(num_envs,)`, long, says which."""
        for rows in self._rows.values():
            rows.numbers.copy_(rows.numbers.index_select(1, source))

    def buffers(self) -> list[torch.Tensor]:
        """Return the memory of all state."""
        return [*(rows.numbers for rows in self._rows.values()), *self.shared.values()]

    def state_dict(self) -> dict[str, Any]:
        """Return copies of what is persistent: one tensor `(rows, num_envs)` for each dtype."""
        saved: dict[str, Any] = {"rows": {}, "sizes": {}, "shared": {}}
        for dtype, rows in self._rows.items():
            sizes = {k: size for k, size in rows.sizes.items() if k not in self._passing}
            kept = [torch.full((prod(n),), k in sizes) for k, n in rows.sizes.items()]
            saved["rows"][str(dtype)] = rows.numbers[torch.cat(kept).to(self._device)]
            saved["sizes"][str(dtype)] = {k: list(size) for k, size in sizes.items()}
        shared = {k: one for k, one in self.shared.items() if k not in self._passing}
        return saved | {"shared": {name: tensor.clone() for name, tensor in shared.items()}}

    def load_state_dict(self, saved: Mapping[str, Any], only_shared: bool = False) -> list[str]:
        """Restore what `state_dict` returned for as many environments; return the names it lacks.

        Raises:
            ValueError, TypeError, KeyError, RuntimeError: it is not what `state_dict` returns.
        """
        found = dict(saved["shared"])
        for dtype, sizes in {} if only_shared else saved["sizes"].items():
            parts = saved["rows"][dtype].split([prod(size) for size in sizes.values()])
            found |= {
                name: part.T.reshape(self._num_envs, *size)
                for part, (name, size) in zip(parts, sizes.items(), strict=True)
            }
        tensors = self.shared if only_shared else self.shared | self.of_envs
        wanted = {k: tensor for k, tensor in tensors.items() if k not in self._passing}
        fits = {
            name: name in found and found[name].shape == tensor.shape
            for name, tensor in wanted.items()
        }
        for name in (name for name in wanted if fits[name]):
            wanted[name].copy_(found[name])
        return [name for name in wanted if not fits[name]]

    def _append(
        self, name: str, size: tuple[int, ...], dtype: torch.dtype, value: float, is_filled: bool
    ) -> torch.Tensor:
        """Return the tensor of a new state in the last rows; that of each other one stays valid."""
        empty = torch.empty(0, 1, dtype=dtype, device=self._device)
        rows = self._rows.setdefault(dtype, Rows(empty.clone(), empty, empty.bool()))
        first, count = len(rows.numbers), prod(size)
        storage = rows.numbers.untyped_storage()
        storage.resize_((first + count) * self._num_envs * dtype.itemsize)
        longer: Any = torch.empty(0, dtype=dtype, device=self._device)
        rows.numbers = longer.set_(storage, 0, (first + count, self._num_envs))
        rows.fill = torch.cat((rows.fill, rows.fill.new_full((count, 1), value)))
        flags = rows.is_filled.new_full((count, 1), is_filled)
        rows.is_filled = torch.cat((rows.is_filled, flags))
        rows.sizes[name] = size
        return rows.numbers[first:].T.view(self._num_envs, *size)
