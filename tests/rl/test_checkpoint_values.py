"""A checkpoint of somebody else either goes on or is refused with one message."""

import copy
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mjfleet.errors import UserError
from mjfleet.rl.checkpoint_contents import Checkpointer
from mjfleet.rl.checkpoint_files import read_checkpoint

from ..conftest import drawn
from .test_checkpoints import agent, build, train

HUGE = torch.zeros(1).expand(10**11)
WRONG = (
    "text", [], {}, None, -1, 2**70, -(10**30), float("nan"), float("inf"), True, b"bytes", (1, 2),
    torch.zeros(3), torch.zeros(0), torch.tensor(float("nan")), HUGE, {"a": HUGE},
    torch.zeros(2, 2, dtype=torch.long), torch.zeros(3).to_sparse(), [[[]]] * 3, {0: "x"},
    torch.zeros(5, device="meta"),
)  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpointer, Path]:
    """A checkpoint after two iterations, and what resumes from it."""
    folder = tmp_path_factory.mktemp("checkpoints")
    train(*build(folder, agent(2)))
    return build(folder, agent(9))[1], folder / "model_2.pt"


def places(value: Any, found: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values inside a value; of a long list, of the first ones."""
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, (list, tuple)):
        items = list(enumerate(value))[:3]
    inner = [path for key, item in items for path in places(item, (*found, key))]
    return [found, *inner]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a value with another one at a path inside of it."""
    if not path:
        return new
    key, *rest = path
    changed = replaced(value[key], tuple(rest), new)
    if isinstance(value, tuple):
        return (*value[:key], changed, *value[key + 1 :])
    value = copy.copy(value)
    value[key] = changed
    return value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(3600)
@drawn(40)
@given(data=st.data())
def test_any_value_in_the_place_of_another_is_no_traceback(
    checkpoint: tuple[Checkpointer, Path], data: st.DataObject
) -> None:
    checkpointer, path = checkpoint
    state = torch.load(path, weights_only=True)
    place = data.draw(st.sampled_from([place for place in places(state) if place]))
    state = replaced(state, place, data.draw(st.sampled_from(WRONG)))
    file = path.with_name("changed.pt")
    torch.save(state, file)
    said = str(file)
    try:
        checkpointer.resume(file)
    except UserError as error:
        said = str(error)
    assert str(file) in said
    assert len(said) < 1000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.update(iter="text"), "its iter is not"),
        (lambda s: s.update(iter=-(10**30)), "its iter is not"),
        (lambda s: s.update(optimizer_state_dict=[]), "its optimizer_state_dict is not"),
        (lambda s: s["actor_state_dict"].update(more=HUGE), "shape [100000000000]"),
        (lambda s: s["mjfleet"].update(total_steps=-1), "its total_steps is not"),
        (lambda s: s["mjfleet"].update(window=[{"episodes": "many"}]), "its window is not"),
        (lambda s: s.update(more=torch.zeros(9).to_sparse()), "sparse"),
        (lambda s: s.update(more=10**100), "huge integer"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_values_are_checked_before_anything_is_built(
    checkpoint: tuple[Checkpointer, Path], change: Callable[[Any], object], said: str
) -> None:
    state = torch.load(checkpoint[1], weights_only=True)
    change(state)
    file = checkpoint[1].with_name("changed.pt")
    torch.save(state, file)
    with pytest.raises(UserError, match="is damaged") as refused:
        read_checkpoint(file)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("optimizer_state_dict", "state", 0, "exp_avg"), torch.zeros(7), "exp_avg"),
        (("mjfleet", "ranks", 0, "sim", "qpos"), torch.zeros(1, 7), "'qpos'"),
        (("mjfleet", "ranks", 0, "env", "step"), 3, "step is no state"),
        (("mjfleet", "ranks", 0, "env", "sim"), 3, "sim is no state"),
    ],
)
def test_what_does_not_fit_this_run_is_named(
    checkpoint: tuple[Checkpointer, Path], place: tuple[Any, ...], value: Any, said: str
) -> None:
    checkpointer, path = checkpoint
    state = torch.load(path, weights_only=True)
    parent = state
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = value
    file = path.with_name("changed.pt")
    torch.save(state, file)
    with pytest.raises(UserError, match="cannot be restored here") as refused:
        checkpointer.resume(file)
    assert said in str(refused.value)


def test_a_compressed_file_is_not_expanded(
    checkpoint: tuple[Checkpointer, Path], tmp_path: Path
) -> None:
    bomb = tmp_path / "model_2.pt"
    with (
        zipfile.ZipFile(checkpoint[1]) as whole,
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    with pytest.raises(UserError, match="compressed"):
        read_checkpoint(bomb)
