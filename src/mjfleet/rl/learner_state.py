"""What a learner remembers besides networks and optimisers, as it declares it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import nn

from mjfleet.env.undeclared_changes import address, changes, look
from mjfleet.errors import UserError

Per = Literal["run", "rank", "env"]
KINDS: tuple[Per, ...] = get_args(Per)
NUMBER = bool, int, float, str
LIBRARIES = "torch.", "rsl_rl.", "mjfleet."
"""Modules whose layers have no state but what checkpoints hold."""


@dataclass(frozen=True)
class Declared:
    get: Callable[[], Any]
    set: Callable[[Any], object]
    per: Per
    first: Any
    """A number as it was declared. Where it is another one now, as by a flag, none is restored."""


class LearnerState:
    """Declares what a learner changes, and finds changes that are not declared."""

    def __init__(self) -> None:
        self._declared: dict[str, Declared] = {}
        self._scratch = {"_declared", "_scratch", "_look", "owner"}
        self._look: dict[str, Any] = {}
        self.owner: Any = self
        """The object whose attributes are state."""

    def add_state(
        self,
        name: str,
        value: Any = None,
        per: Per = "run",
        *,
        get: Callable[[], Any] | None = None,
        set: Callable[[Any], object] | None = None,
    ) -> Any:
        """Declare a number, text or tensor that updates change, which checkpoints then hold.

        Args:
            name: of the attribute that holds it. A tensor stays the same one, written in place.
            value: what it is at first, if there is no `get`.
            per: `run`: it is the same on all ranks, which is checked; `rank`: each has its own;
                `env`: it belongs to the environments, and begins anew where they do.
            get, set: for what is no attribute: return it, and take what a checkpoint holds.

        Returns:
            The value.

        Raises:
            UserError: it is declared twice, or has a type that checkpoints do not hold.
        """
        what = f"{type(self).__name__}: add_state({name!r})"
        if name in self._declared:
            raise UserError(f"{what} is called twice.")
        if get is None:
            if not isinstance(value, (*NUMBER, torch.Tensor)):
                raise UserError(f"{what}: it is {value!r:.60}; it must be a number or a tensor.")
            setattr(self, name, value)
        get, set = get or partial(getattr, self, name), set or partial(self.put, self, name)
        first = now if isinstance(now := get(), NUMBER) else None
        self._declared[name] = Declared(get, set, per, first)
        return now

    def scratch(self, *names: str) -> None:
        """Exempt attributes from the declaration: they can be computed from other state."""
        self._scratch.update(names)

    def states(self, *kinds: Per) -> dict[str, Any]:
        """Return the declared state of these kinds on the CPU, by name, see `on_cpu`."""
        found = {name: x for name, x in self._declared.items() if x.per in kinds}
        return {name: [x.first, on_cpu(x.get())] for name, x in found.items()}

    def load_states(self, saved: Mapping[str, Any], *kinds: Per) -> None:
        """Restore what `states` returned; ValueError: a state has another shape now."""
        for name, one in self._declared.items():
            first, value = saved.get(name, (None, None)) if one.per in kinds else (None, None)
            if value is not None and first == one.first:
                one.set(value)

    @property
    def remembers_much(self) -> bool:
        """Whether there are tensors of one rank, such as a replay."""
        return any(isinstance(value, torch.Tensor | dict) for value in self.values("rank"))

    def values(self, *kinds: Per) -> list[Any]:
        """Return what is declared as it is, of these kinds; none: of all."""
        return [one.get() for one in self._declared.values() if not kinds or one.per in kinds]

    def tensors(self, *kinds: Per) -> list[torch.Tensor]:
        """Return the tensors among `values`."""
        return [value for value in self.values(*kinds) if isinstance(value, torch.Tensor)]

    def begin_watching(self) -> None:
        """Remember the current values, with which `check_undeclared` compares."""
        self._look = self._look_now()

    def check_undeclared(self) -> None:
        """Raise UserError if an attribute that is not declared has changed."""
        for name in changes(self._look, self._look_now()):
            own, _, of_network = name.partition(".")
            base = "" if self.owner is self else " of mjfleet.rl.algorithm.Algorithm"
            what, other = f"`self.{own} = self.add_state({own!r}, ...)` in `__init__`{base}", ""
            if of_network:
                what = "it into a buffer of a network among `networks()`"
                other = ", or begin the name of a layer's attribute with `_`"
            raise UserError(
                f"{type(self.owner).__name__}.{name} changes in an update, and is not declared. "
                f"If it is to be remembered, write {what}, and change a tensor in place. If it "
                f"follows from other state, write `self.scratch({own!r})`{other}."
            )

    def known_tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that may change: those of networks and declared state."""
        yield from self.tensors()

    def _look_now(self) -> dict[str, Any]:
        owned, found = {address(tensor) for tensor in self.known_tensors()}, dict[str, Any]()
        for name, value in vars(self.owner).items():
            if name in self._scratch or name in self._declared:
                continue
            if isinstance(value, nn.Module):
                found |= {f"{name}.{key}": x for key, x in value.state_dict().items()}
                found |= _attributes_of(value, name)
            else:
                found[name] = value
        return look(found, owned)

    @staticmethod
    def put(owner: Any, name: str, value: Any) -> None:
        """Set an attribute of `owner`, in place if it is a tensor; ValueError: of another shape."""
        now = getattr(owner, name)
        if not isinstance(now, torch.Tensor):
            setattr(owner, name, value)
        elif not isinstance(value, torch.Tensor) or value.shape != now.shape:
            raise ValueError(f"the state {name!r} of {type(owner).__name__} has another shape")
        else:
            now.copy_(value)


def _attributes_of(network: nn.Module, name: str) -> dict[str, Any]:
    """Return what layers of a user's classes have besides parameters and buffers, by place; without
    attributes whose names begin with `_`, and of networks whose memory `get_hidden_state` has."""
    found, has_memory = dict[str, Any](), getattr(network, "is_recurrent", False)
    for place, layer in () if has_memory else network.named_modules(prefix=name):
        own = {} if type(layer).__module__.startswith(LIBRARIES) else vars(layer)
        names = (key for key in own if key != "training" and not key.startswith("_"))
        found |= {f"{place}.{key}": own[key] for key in names}
    return found


def on_cpu(tree: Any) -> Any:
    """Return dictionaries, lists and tuples with their tensors on the CPU, to be saved at once.

    A view is copied, because it would be saved with the rest of its buffer; other tensors are not.
    """
    if isinstance(tree, dict):
        return {key: on_cpu(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(map(on_cpu, tree))
    if not isinstance(tree, torch.Tensor):
        return tree
    return tree.detach().to("cpu", copy=tree.nbytes < tree.untyped_storage().nbytes())
