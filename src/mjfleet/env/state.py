"""State that an environment's `setup` declares: what resets fill, and checkpoints hold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from numbers import Integral, Real
from typing import Any, Literal

import torch

from mjfleet.errors import UserError

Reset = float | Literal["keep"] | Callable[[torch.Tensor], torch.Tensor]
"""What a reset does to a state: write a value, nothing, or what a function of the mask returns."""


@dataclass
class Rows:
    """All states of one dtype: a row for each of their numbers, a column for each environment."""

    numbers: torch.Tensor  # `(rows, num_envs)`
    fill: torch.Tensor  # What a reset writes into a row, `(rows, 1)`.
    is_filled: torch.Tensor  # Whether a reset writes it, `(rows, 1)`, bool.
    is_saved: torch.Tensor  # Whether checkpoints hold it, `(rows,)`, bool.


def write_where(mask: torch.Tensor, target: torch.Tensor, values: torch.Tensor | float) -> None:
    """Do what `target[mask] = values[mask]` does, without waiting for the device."""
    if not isinstance(values, torch.Tensor):
        if not isinstance(values, Real):
            raise UserError(
                f"write(): values is {values!r:.80}; it must be a tensor "
                f"{tuple(target.shape)}, or a number."
            )
        values = target.new_full((), values)
    where = mask.view(-1, *[1] * (target.ndim - 1))
    torch.where(where, values.to(target.dtype), target, out=target)


class States:
    """The declared state of `num_envs` environments; `Env.add_state` describes the arguments."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        self._num_envs, self._device = num_envs, device
        self._nothing = torch.empty(0, dtype=torch.float64, device=device)
        self._rows: dict[torch.dtype, Rows] = {}
        self._is_filled: torch.Tensor | None = None  # That of all rows, until one is added.
        self._drawn: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
        self._saved: set[str] = set()  # Names of what checkpoints hold.
        self.shared: dict[str, torch.Tensor] = {}
        self._begun: dict[str, torch.Tensor] = {}
        """What of `shared` is summed over all ranks, as it was when it was summed last."""
        self.of_envs: dict[str, torch.Tensor] = {}
        """State of the environments by name, each `(num_envs, *size)`."""

    def add(
        self,
        name: str,
        size: tuple[int, ...],
        dtype: torch.dtype,
        reset: Reset = 0.0,
        start: torch.Tensor | float | None = None,
        is_shared: bool = False,
        is_saved: bool = True,
        reduce: Literal["sum"] | None = None,
    ) -> torch.Tensor:
        """Declare a state, and return its tensor.

        Raises:
            UserError: the name has been declared, or another argument is wrong.
        """
        what = f"add_state({name!r})"
        if name in self.of_envs | self.shared:
            raise UserError(f"{what} is called twice.")
        if not all(isinstance(part, Integral) and part > 0 for part in size):
            raise UserError(f"{what}: its size is {size}; it must be whole numbers above 0.")
        size = tuple(map(int, size))  # Those of a mujoco.MjModel are NumPy's.
        shape = size if is_shared else (self._num_envs, *size)
        if is_shared and callable(reset):
            text = "no reset draws what belongs to no single environment"
            raise UserError(f"{what}: `shared=True` with a function as `reset`: {text}.")
        if reduce not in (None, "sum") or (reduce and not is_shared):
            raise UserError(f'{what}: `reduce` must be "sum" with `shared=True`, or None.')
        is_filled = not (callable(reset) or reset == "keep")
        try:
            value = float(reset) if is_filled else 0.0  # pyright: ignore[reportArgumentType]
            first = torch.as_tensor(value if start is None else start, device=self._device)
            first = first.to(dtype).expand(shape)
        except (RuntimeError, TypeError, ValueError):
            raise UserError(
                f'{what}: `dtype` must be torch\'s, `reset` a number, "keep" or a function of the '
                f"mask, and `start` a number or {shape}."
            ) from None
        dtype = first.dtype  # torch also takes Python's types.
        if callable(reset):
            self._drawn[name] = reset
        if is_saved:
            self._saved.add(name)
        with torch.inference_mode(False):
            if is_shared:
                self.shared[name] = first.clone()
                if reduce:
                    self._begun[name] = first.clone()
                return self.shared[name]
            tensor = self.of_envs[name] = self._append(size, dtype, value, is_filled, is_saved)
            return tensor.copy_(first)

    def reset(self, mask: torch.Tensor) -> None:
        """Write what a reset writes where `mask` `(num_envs,)` is true.

        Raises:
            UserError: a function of the task's returns another shape than the state has.
        """
        if self._is_filled is None:
            self._is_filled = torch.cat([rows.is_filled for rows in self._rows.values()])
        is_written = (self._is_filled & mask).split([len(x.numbers) for x in self._rows.values()])
        for rows, where in zip(self._rows.values(), is_written, strict=True):
            torch.where(where, rows.fill, rows.numbers, out=rows.numbers)
        for name, draw in self._drawn.items():
            drawn, tensor = draw(mask), self.of_envs[name]
            if (shape := getattr(drawn, "shape", None)) != tensor.shape:
                found = type(drawn).__name__ if shape is None else tuple(shape)
                raise UserError(
                    f"add_state({name!r}): its `reset` returns {found}; it must return "
                    f"{tuple(tensor.shape)}."
                )
            write_where(mask, tensor, drawn)

    def take_over(self, source: torch.Tensor) -> None:
        """Copy to each environment the state of environment `source` `(num_envs,)`, long."""
        for rows in self._rows.values():
            rows.numbers.copy_(rows.numbers.index_select(1, source))

    def buffers(self) -> list[torch.Tensor]:
        """Return the memory of all state."""
        return [*(rows.numbers for rows in self._rows.values()), *self.shared.values()]

    def state_dict(self) -> dict[str, Any]:
        """Return copies of what checkpoints hold: one tensor `(rows, num_envs)` for each dtype."""
        shared = {name: one.clone() for name, one in self.shared.items() if name in self._saved}
        rows = {str(dtype): one.numbers[one.is_saved] for dtype, one in self._rows.items()}
        return {"rows": rows, "sizes": self.sizes(), "shared": shared}

    def sizes(self) -> dict[str, dict[str, list[int]]]:
        """Return names and sizes of what checkpoints hold in `rows`, by dtype."""
        found: dict[str, dict[str, list[int]]] = {str(dtype): {} for dtype in self._rows}
        for name, tensor in self.of_envs.items():
            if name in self._saved:
                found[str(tensor.dtype)][name] = list(tensor.shape[1:])
        return found

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned for as many environments with the same `sizes`."""
        for dtype, rows in self._rows.items():
            rows.numbers[rows.is_saved] = saved["rows"][str(dtype)].to(rows.numbers)
        self.load_shared(saved)

    def load_shared(self, saved: Mapping[str, Any]) -> None:
        """Restore the shared state that `state_dict` returned, where it has the same shape."""
        for name, tensor in self.shared.items():
            found = saved.get("shared", {}).get(name)
            if found is not None and found.shape == tensor.shape:
                tensor.copy_(found)
        self.begin_sums()

    def added(self) -> torch.Tensor:
        """Return what this rank has added to summed state since `begin_sums`, flat, float64."""
        parts = [self.shared[n].double() - begun.double() for n, begun in self._begun.items()]
        return torch.cat([*map(torch.ravel, parts)]) if parts else self._nothing

    def add_up(self, totals: Sequence[float]) -> None:
        """Add what all ranks have added, the sums of `added`, in place of what this one has."""
        numbers = torch.tensor(totals, dtype=torch.float64, device=self._device)
        sizes = [begun.numel() for begun in self._begun.values()]
        for (name, begun), part in zip(self._begun.items(), numbers.split(sizes), strict=True):
            self.shared[name].copy_(begun.double() + part.view_as(begun))

    def begin_sums(self) -> None:
        """Take the current summed state as the value to which all ranks add."""
        for name, begun in self._begun.items():
            begun.copy_(self.shared[name])

    def _append(
        self, size: tuple[int, ...], dtype: torch.dtype, value: float, *flags: bool
    ) -> torch.Tensor:
        """Return the tensor of a new state in the last rows; that of each other one stays valid."""
        if dtype not in self._rows:
            none = torch.empty(0, 1, dtype=dtype, device=self._device)
            self._rows[dtype] = Rows(none.clone(), none, none.bool(), none.bool().flatten())
        rows = self._rows[dtype]
        first, count = len(rows.numbers), prod(size)
        rows.numbers.resize_(first + count, self._num_envs)  # All views share the storage.
        rows.fill = torch.cat((rows.fill, rows.fill.new_full((count, 1), value)))
        filled, saved = (torch.full((count,), flag, device=self._device) for flag in flags)
        rows.is_filled = torch.cat((rows.is_filled, filled.unsqueeze(1)))
        rows.is_saved = torch.cat((rows.is_saved, saved))
        self._is_filled = None
        return rows.numbers[first:].T.view(self._num_envs, *size)
