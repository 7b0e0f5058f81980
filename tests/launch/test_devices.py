"""Device selection: what is asked, what is visible, what comes out."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mjfleet.config import LaunchConfig
from mjfleet.config.launch_config import GpuRequest
from mjfleet.errors import UserError
from mjfleet.launch import devices
from mjfleet.launch.devices import Devices, choose_devices, visible_gpus

VISIBLE = "CUDA_VISIBLE_DEVICES"
UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
MIG = "MIG-3f2a1b4c-8932-5c6d-9e0f-20bd9faed9f6"


def select_devices(
    request: GpuRequest,
    environ: dict[str, str],
    num_gpus: int,
    cpu_workers: int | None = None,
    started: int | None = None,
    shared: bool = False,
) -> Devices:
    backend = "gloo" if shared else "auto"
    config = LaunchConfig(gpu_ids=request, cpu_workers=cpu_workers, backend=backend)
    return choose_devices(config, environ, num_gpus, started)


def test_examples_in_the_docstrings() -> None:
    assert doctest.testmod(devices).failed == 0


@pytest.mark.parametrize(
    ("request_", "visible", "gpus", "indices", "physical"),
    [
        ([0, 1], None, 4, (0, 1), ("0", "1")),
        ("all", "3, 01", 4, (0, 1), ("3", "1")),
        ("all", f"{UUID},GPU-12ab34cd", 2, (0, 1), (UUID, "GPU-12ab34cd")),
        ([0], MIG, 1, (0,), (MIG,)),
        ([0], "MIG-GPU-8932f937/7/0", 1, (0,), ("MIG-GPU-8932f937/7/0",)),
        ("auto", "1", 2, (0,), ("1",)),
        ("auto", None, 0, (), ()),
        ("auto", "NoDevFiles", 4, (), ()),
        ("auto", "", 4, (), ()),
        ("all", "-1", 4, (), ()),
        (None, "nonsense", 4, (), ()),
    ],
)
def test_selection(request_, visible, gpus, indices, physical) -> None:
    environ = {} if visible is None else {VISIBLE: visible}
    selected = select_devices(request_, environ, gpus)
    assert (selected.indices, selected.physical) == (indices, physical)


@pytest.mark.parametrize(
    ("request_", "visible", "gpus", "named"),
    [
        ([2], None, 2, ["no GPU 2", "Visible: 0, 1"]),
        ([0, 0], None, 2, ["GPU 0 is listed twice", "--backend gloo"]),
        ([0], None, 0, ["no GPU was found", "--gpu-ids None"]),
        ([0], "", 4, ["hides all GPUs", "--gpu-ids None"]),
        ("all", "0,one", 4, ["cannot read the entry 'one'", UUID[:4]]),
        ("auto", "0,1,2,3", 2, ["no GPU 2", "below 2", "MIG", "nvidia-smi -L"]),
        ("all", "0,00", 4, ["the same GPU is listed twice"]),
        ("all", f"{MIG},{MIG}0", 2, ["one part of a GPU (MIG)", "one UUID alone"]),
    ],
)
def test_errors_say_what_is_wrong_and_what_is_allowed(request_, visible, gpus, named) -> None:
    environ = {} if visible is None else {VISIBLE: visible}
    with pytest.raises(UserError) as error:
        select_devices(request_, environ, gpus)
    for word in named:
        assert word in str(error.value)


def _listed(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


@given(
    request_=st.one_of(
        st.none(), st.sampled_from(["auto", "all"]), st.lists(st.integers(-2, 9), min_size=1)
    ),
    visible=st.one_of(st.none(), st.text(max_size=12), st.lists(st.integers(-1, 9)).map(_listed)),
    gpus=st.integers(0, 8),
)
def test_any_request_is_answered_by_devices_that_are_visible_or_by_a_user_error(
    request_, visible, gpus
) -> None:
    environ = {} if visible is None else {VISIBLE: visible}
    try:
        selected = select_devices(request_, environ, gpus)
    except UserError:
        return
    assert len(selected.indices) == len(selected.physical) == len(set(selected.physical))
    if selected.indices:
        assert request_ is not None
        seen = visible_gpus(environ, gpus)
        assert [seen[i] for i in selected.indices] == list(selected.physical)
        assert not selected.note
    if isinstance(request_, list):
        assert list(selected.indices) == request_


def test_workers_on_the_cpu() -> None:
    assert select_devices("auto", {}, 4, cpu_workers=2).names == ("cpu", "cpu")
    assert select_devices(None, {}, 0, cpu_workers=3).names == ("cpu",) * 3
    assert select_devices("auto", {}, 4, cpu_workers=2).note == ""
    for request_ in ("all", [0, 1]):
        with pytest.raises(UserError, match="choose one of them"):
            select_devices(request_, {}, 4, cpu_workers=2)


def test_devices_for_workers_that_something_else_has_started() -> None:
    assert select_devices([1, 0], {}, 4, started=2).indices == (1, 0)
    assert select_devices("all", {}, 2, started=2).indices == (0, 1)
    assert select_devices("auto", {}, 4, started=2).indices == (0, 1)
    assert select_devices("auto", {}, 0, started=2).names == ("cpu", "cpu")
    assert select_devices(None, {}, 4, started=2).names == ("cpu", "cpu")
    # Workers can share a GPU where that is asked for, or where a scheduler shows each its own.
    assert select_devices([0, 0], {}, 1, shared=True).names == ("cuda:0", "cuda:0")
    with pytest.raises(UserError, match="there is no GPU 1"):
        select_devices("auto", {}, 1, started=2)
    assert select_devices("auto", {VISIBLE: "3"}, 4, started=2).physical == ("3", "3")


def test_a_number_of_devices_that_is_not_that_of_the_workers_is_refused() -> None:
    with pytest.raises(UserError, match="--gpu-ids 0 is for 1 worker on this host, but 2 were"):
        select_devices([0], {}, 4, started=2)
    with pytest.raises(UserError, match="--cpu-workers 3 is for 3 workers"):
        select_devices("auto", {}, 4, cpu_workers=3, started=2)
