"""What a learner remembers besides networks and optimisers, as it declares it."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import nn

from mjfleet.env.undeclared_changes import address, changes, look
from mjfleet.errors import UserError
from mjfleet.rl.device.optimizer import state_tensors

Per = Literal["run", "rank", "env"]
KINDS: tuple[Per, ...] = get_args(Per)
NUMBER = bool, int, float, str
CONTAINERS = dict, OrderedDict, Counter, list, tuple
PLAIN = *NUMBER, type(None), torch.Tensor, nn.Parameter, *CONTAINERS
"""Types that are read back from a checkpoint."""
FRAMEWORK = "rsl_rl.", "mjfleet."
LIBRARIES = "torch.", *FRAMEWORK
"""Modules whose layers have no state but what checkpoints hold."""


@dataclass(frozen=True)
class Declared:
    get: Callable[[], Any]
    set: Callable[[Any], object]
    per: Per
    first: Any
    """A number as it was declared. Where it is another one now, as by a flag, none is restored."""
    is_attribute: bool


class LearnerState:
    """Declares what a learner changes, and finds changes that are not declared."""

    def __init__(self) -> None:
        self._declared: dict[str, Declared] = {}
        self._scratch = {"_declared", "_scratch", "_look", "_kinds", "owner"}
        self._look: dict[str, Any] = {}
        self._kinds: dict[str, str] = {}
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
            UserError: it is declared twice, or has a type that checkpoints do not hold, or `per` is
                none of these.
        """
        what, is_attribute = f"{type(self).__name__}: add_state({name!r})", get is None
        if name in self._declared:
            raise UserError(f"{what} is called twice.")
        if per not in KINDS:
            raise UserError(f"{what}: `per` is {per!r}; it must be one of {', '.join(KINDS)}.")
        if is_attribute:
            if type(value) not in PLAIN[: -len(CONTAINERS)] or value is None:
                must = "a number or a tensor, or have `get` and `set`"
                raise UserError(f"{what}: it is {value!r:.60}; it must be {must}.")
            setattr(self, name, value)
        get, set = get or partial(getattr, self, name), set or partial(self.put, self, name)
        first = now if isinstance(now := get(), NUMBER) else None
        self._declared[name] = Declared(get, set, per, first, is_attribute)
        return now

    def scratch(self, *names: str) -> None:
        """Exempt attributes from the declaration: they can be computed from other state."""
        self._scratch.update(names)

    def states(self, *kinds: Per) -> dict[str, Any]:
        """Return the declared state of these kinds on the CPU, by name, see `on_cpu`."""
        found = {name: x for name, x in self._declared.items() if x.per in kinds}
        return {name: [x.first, on_cpu(x.get())] for name, x in found.items()}

    @torch.no_grad()
    def load_states(self, saved: Mapping[str, Any], *kinds: Per) -> None:
        """Restore what `states` returned; ValueError: a state has another shape now."""
        for name, one in self._declared.items():
            first, value = saved.get(name, (None, None)) if one.per in kinds else (None, None)
            if value is not None and first == one.first:
                one.set(value)

    def misfits(self, saved: Mapping[str, Any], per: Per) -> list[str]:
        """Return the names of attributes of this kind that have another type or shape in what
        `states` returned, as where a flag decides the length of a replay."""
        own = [k for k, x in self._declared.items() if x.is_attribute and x.per == per]
        return [k for k in own if k in saved and _kind(saved[k][1]) != self._kinds[k]]

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
        self._look, self._kinds = self._look_now(), self._kinds_now()

    def check_undeclared(self) -> None:
        """Raise UserError if an attribute that is not declared has changed, or if state that is
        declared can no longer be saved and restored."""
        who = type(self.owner).__name__
        for name, one in self._declared.items():
            if odd := _odd_type(one.get()):
                raise UserError(
                    f"the state {name!r} of {who} holds a {odd}, which no checkpoint restores: let "
                    "it be a number or a tensor, or containers with these."
                )
        for name, kind in self._kinds_now().items():
            if kind != self._kinds[name]:
                raise UserError(
                    f"the state {name!r} of {who} was {self._kinds[name]} at first, and is {kind} "
                    "now, which would not be restored: let it keep type and shape."
                )
        derive = "derive the class from mjfleet.rl.algorithm.Algorithm and "
        derive *= self.owner is not self
        for name in changes(self._look, self._look_now()):
            raise UserError(
                f"{who}.{name} changes in an update, and is not declared. If it is to be "
                f"remembered, {derive}{self._declaration(name)}. If it follows from other state, "
                f"{derive}write `self.scratch({name.partition('.')[0]!r})`."
            )

    def _declaration(self, name: str) -> str:
        """Return what to do about an attribute, or a part of one, that changes."""
        own = name.partition(".")[0]
        value, add_state = vars(self.owner)[own], f"self.add_state({own!r}, "
        of_network = isinstance(value, nn.Module)
        if of_network and any(value is one for one in self.known()):
            advice = "write it into a buffer of a network among `networks()`, in place; or, if it "
            return f"{advice}can be computed, begin the name of a layer's attribute with `_`"
        if of_network:
            return f"return `self.{own}` from `networks()`, or from `modules()` of a PPO"
        if value is None or isinstance(value, (*NUMBER, torch.Tensor)):
            line = f"`self.{own} = {add_state}...)` in `__init__`"
            return f"write {line}, and change a tensor in place"
        line = f"`{add_state}get=..., set=...)` in `__init__`"
        return (
            f"write {line}, or return a network from `networks()`, an optimiser from `optimizers()`"
        )

    def known(self) -> Iterator[Any]:
        """Yield tensors and other objects that may change, since checkpoints hold them."""
        yield from self.tensors()

    def _kinds_now(self) -> dict[str, str]:
        """Return type and shape of what is declared as an attribute, by name."""
        return {k: _kind(x.get()) for k, x in self._declared.items() if x.is_attribute}

    def _look_now(self) -> dict[str, Any]:
        known, found = [*self.known()], dict[str, Any]()
        owned = {address(one) for one in known if isinstance(one, torch.Tensor)}
        package = type(self.owner).__module__.partition(".")[0]
        for name, value in vars(self.owner).items():
            if name in self._scratch or name in self._declared:
                continue
            parts = _parts_of(value, package)
            if parts is None:
                found[name] = value
            elif isinstance(value, nn.Module) or all(value is not one for one in known):
                found |= {f"{name}.{key}": part for key, part in parts.items()}
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


def _parts_of(value: Any, package: str) -> Mapping[Any, Any] | None:
    """Return what an attribute's object has that may change, by name: a network, an optimiser, a
    schedule, or an object of this package's classes. None: it is another one."""
    if isinstance(value, nn.Module):
        return _parts_of_network(value)
    if isinstance(value, torch.optim.Optimizer):
        return dict(enumerate(state_tensors(value)))
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        return value.state_dict()
    modules = [kind.__module__ for kind in type(value).__mro__]
    is_own = modules[0].partition(".")[0] == package and hasattr(value, "__dict__")
    is_environment = any(module.startswith(FRAMEWORK) for module in modules)
    return vars(value) if is_own and not is_environment else None


def _parts_of_network(network: nn.Module) -> dict[str, Any]:
    """Return parameters and buffers, and what layers of a user's classes have besides, by place;
    without attributes whose names begin with `_`, and of networks whose memory `get_hidden_state`
    has."""
    found = network.state_dict(keep_vars=True)
    has_memory = getattr(network, "is_recurrent", False)
    for place, layer in () if has_memory else network.named_modules():
        own = {} if type(layer).__module__.startswith(LIBRARIES) else vars(layer)
        names = (key for key in own if key != "training" and not key.startswith("_"))
        found |= {f"{place}.{key}".lstrip("."): own[key] for key in names}
    return found


def _odd_type(tree: Any) -> str:
    """Return a type in a state that checkpoints do not restore; empty: there is none."""
    if type(tree) not in PLAIN:
        return f"{type(tree).__module__}.{type(tree).__qualname__}"
    items = tree.values() if isinstance(tree, dict) else tree
    return next(filter(None, map(_odd_type, items)), "") if type(tree) in CONTAINERS else ""


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {tuple(value.shape)} of {value.dtype}"
    return "a number or text" if isinstance(value, NUMBER) else type(value).__name__


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
