"""A device that refuses the host's tensors as a GPU does, on a CPU.

torch takes "cpu:0" for the CPU, but keeps the name apart from "cpu" where it passes it on. Tensors
made on DEVICE, and what is computed from them, are noted; operations are refused where torch would
refuse those of a CPU's tensors with a GPU's.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from mjfleet.sim.deferred import Deferred
from mjfleet.sim.native_engine import NativeSimulation
from mjfleet.sim.view import ImageKind, View

DEVICE = "cpu:0"
aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._foreach_copy_.default, aten.copy.default}
"""What takes tensors of both devices."""
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}
"""What takes indices on the host for a tensor on a device, but not the other way."""
PRODUCTS = {
    aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default,
    aten.convolution.default, aten.linear.default, aten.matmul.default, aten.einsum.default,
}  # fmt: skip
"""What cuBLAS and cuDNN compute in TF32 where that is on."""
TO_NUMPY = {torch.Tensor.numpy, torch.Tensor.__array__}
PLAIN = {
    int, float, bool, str, slice, type(None), type(...), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
}  # fmt: skip
"""Types of arguments that hold no tensor."""
MOVES = {torch.Tensor.cpu, torch.Tensor.to, torch.Tensor.type_as}


class WrongDeviceError(RuntimeError):
    """torch would refuse this on a GPU."""


class RoundedError(RuntimeError):
    """A GPU would round this to three digits in TF32."""


class SecondDevice(TorchFunctionMode):
    """Notes in a block which tensors are on DEVICE, and refuses to mix them with the host's."""

    def __init__(self) -> None:
        super().__init__()
        # An address is not used again while a weak reference to the storage is held.
        self._storages: dict[int, StorageWeakRef] = {}
        self._dispatch = _Dispatch(self)
        self._is_free = self.computes = self.is_exact = False

    def __enter__(self) -> "SecondDevice":
        self._dispatch.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._dispatch.__exit__(*error)

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on DEVICE."""
        return tensor.untyped_storage()._cdata in self._storages

    def put(self, found: Any) -> Any:
        """Note that tensors are on DEVICE; return them."""
        for tensor in _tensors(found):
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = StorageWeakRef(storage)
        return found

    @contextmanager
    def free(self) -> Iterator[None]:
        """Refuse and note nothing in a block: what an engine does."""
        before, self._is_free = self._is_free, True
        try:
            yield
        finally:
            self._is_free = before

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Refuse products of matrices in a block, which TF32 would round."""
        self.is_exact = True
        try:
            yield
        finally:
            self.is_exact = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if self._is_free:
            return func(*args, **kwargs)
        is_of_device = any(self.has(tensor) for tensor in _tensors((args, kwargs)))
        if is_of_device and func == torch.Tensor.device.__get__:
            return torch.device(DEVICE)
        if is_of_device and func in TO_NUMPY:
            raise WrongDeviceError("NumPy cannot read a tensor of the device: .cpu() copies it.")
        if func in MOVES:
            goal = self._goal(func, args, kwargs)
            if goal is not None and goal != self.has(args[0]):
                with self.free():
                    moved = func(*args, **kwargs).clone()
                return self.put(moved) if goal else moved
        named = kwargs.get("device")
        before, self.computes = self.computes, self.computes or (is_of_device and named is None)
        try:
            found = func(*args, **kwargs)
        finally:
            self.computes = before
        is_ours = func is torch.Tensor.new_tensor and self.has(args[0])
        is_ours = is_ours if named is None else _is_device(named)
        if is_ours and not all(map(self.has, _tensors(found))):
            with self.free():  # torch.as_tensor shares what it is given.
                found = self.put(tree_map_only(torch.Tensor, torch.clone, found))
        return found

    def _goal(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool | None:
        """Return whether one of MOVES is to the device; None: to none."""
        if func is torch.Tensor.cpu:
            return False
        for value in (*args[1:], *kwargs.values()):
            if isinstance(value, torch.Tensor):
                return self.has(value)
            if isinstance(value, str | torch.device):
                return _is_device(value)
        return None


class _Dispatch(TorchDispatchMode):
    """Sees every operation, also those of autograd and inside others."""

    def __init__(self, owner: SecondDevice) -> None:
        super().__init__()
        self._owner = owner

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        owner, kwargs = self._owner, dict(kwargs or {})
        if owner._is_free:
            return func(*args, **kwargs)
        if owner.is_exact and func in PRODUCTS:
            raise RoundedError(f"{func}: TF32 would round it.")
        given = _tensors((args, kwargs))
        ours = [tensor for tensor in given if owner.has(tensor)]
        if ours and func not in COPIES:
            self._check(func, args, given)
        inputs = {tensor.untyped_storage()._cdata for tensor in given}
        found = func(*args, **kwargs)
        named = kwargs.get("device")
        is_ours = _is_device(named) if named is not None else bool(ours)
        if is_ours or owner.computes:
            owner.put([t for t in _tensors(found) if t.untyped_storage()._cdata not in inputs])
        return found

    def _check(self, func: Any, args: Any, given: list[torch.Tensor]) -> None:
        """Raise WrongDeviceError where torch would refuse tensors of two devices."""
        if func in INDEXING and self._owner.has(args[0]):
            given = [tensor for tensor in given if all(tensor is not i for i in args[1])]
        strange = [tensor for tensor in given if not self._owner.has(tensor)]
        returns = func._schema.is_mutable and strange and strange[0] is args[0]
        if returns or any(tensor.ndim for tensor in strange):
            raise WrongDeviceError(
                f"{func}: a tensor {tuple(strange[0].shape)} of the host beside one of the device."
            )


def _tensors(*found: Any) -> list[torch.Tensor]:
    """Return all tensors in order. Most arguments are plain, for which `tree_leaves` is slow."""
    tensors: list[torch.Tensor] = []
    for part in found:
        kind = type(part)
        if kind in PLAIN:
            continue
        if isinstance(part, torch.Tensor):
            tensors.append(part)
        elif kind is tuple or kind is list:
            tensors += _tensors(*part)
        elif kind is dict:
            tensors += _tensors(*part.values())
        else:
            tensors += [leaf for leaf in tree_leaves(part) if isinstance(leaf, torch.Tensor)]
    return tensors


def _is_device(named: Any) -> bool:
    return torch.device(named).index == 0


def simulation_on(second: SecondDevice) -> type[NativeSimulation]:
    """Return the native engine whose tensors are on the device."""

    class OnDevice(NativeSimulation):
        def __init__(self, *args: Any) -> None:
            with second.free():
                super().__init__(*args)
            self.device = torch.device(DEVICE)

        def step(self, n: int = 1) -> None:
            with second.free():
                super().step(n)

        def forward(self, mask: torch.Tensor | None = None) -> None:
            with second.free():
                super().forward(mask)

        def reset(self, mask: torch.Tensor) -> None:
            with second.free():
                super().reset(mask)

        def rays(
            self, starts: torch.Tensor, directions: torch.Tensor, groups: tuple[int, ...]
        ) -> torch.Tensor:
            assert second.has(starts)
            assert second.has(directions)
            with second.free():
                return second.put(super().rays(starts, directions, groups))

        def _images(self, view: View) -> dict[ImageKind, torch.Tensor]:
            with second.free():
                return second.put(super()._images(view))

        def state(self) -> dict[str, torch.Tensor]:
            with second.free():
                return second.put(super().state())

        def deferred_warnings(self) -> Deferred[dict[str, int]]:
            with second.free():
                numbers, decode = super().deferred_warnings()
            return Deferred(second.put(numbers), decode)

        def _bind(self, name: str) -> torch.Tensor:
            with second.free():
                return second.put(super()._bind(name))

        def _expand(self, name: str) -> torch.Tensor:
            with second.free():
                return second.put(super()._expand(name))

    return OnDevice
