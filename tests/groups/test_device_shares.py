"""The devices of the runs of a group."""

import pytest

from mjfleet.config import LaunchConfig
from mjfleet.errors import UserError
from mjfleet.groups.device_shares import divide_devices

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("config", "visible", "per_run", "gpus"),
    [
        (LaunchConfig(), None, 2, [(0, 1), (2, 3)]),
        (LaunchConfig(), "2,3", None, [(0,), (1,)]),
        (LaunchConfig(gpu_ids=[1, 3]), None, None, [(1,), (3,)]),
        (LaunchConfig(gpu_ids=[0, 0], backend="gloo"), None, None, [(0,), (0,)]),
    ],
)
def test_each_run_has_gpus_of_its_own(
    config: LaunchConfig, visible: str | None, per_run: int | None, gpus: list[tuple[int, ...]]
) -> None:
    environ = {} if visible is None else {VISIBLE: visible}
    found = divide_devices(config, environ, 9, per_run, num_gpus=4, cores=8)
    assert [share.gpus for share in found] == gpus
    assert {share.threads for share in found} == {8 // len(gpus)}
    assert found[0].flags[-2:] == ("--cpu-threads", str(8 // len(gpus)))


@pytest.mark.parametrize(
    ("config", "per_run", "threads"),
    [
        (LaunchConfig(gpu_ids=None), None, [1] * 8),
        (LaunchConfig(gpu_ids=None), 3, [3, 3]),
        (LaunchConfig(gpu_ids=None, cpu_threads=4), None, [1] * 4),
        (LaunchConfig(cpu_workers=2), None, [2] * 4),
        (LaunchConfig(cpu_workers=12), None, [None]),
    ],
)
def test_each_run_has_cores_of_its_own(
    config: LaunchConfig, per_run: int | None, threads: list[int | None]
) -> None:
    found = divide_devices(config, {}, 20, per_run, num_gpus=4, cores=8)
    assert [share.threads for share in found] == threads
    assert not any(share.gpus for share in found)
    sizes = {None: "all cores", 1: "1 core"}
    assert {share.size for share in found} == {sizes.get(n, f"{n} cores") for n in threads}


@pytest.mark.parametrize(
    ("config", "per_run", "message"),
    [
        (LaunchConfig(), 5, "--per-run is 5; it must be at least 1 and at most 4, the GPUs"),
        (LaunchConfig(gpu_ids=None), 9, "--per-run is 9; it must be at least 1 and at most 8"),
        (LaunchConfig(cpu_workers=2), 1, "--per-run is 1; it must be at least 2"),
    ],
)
def test_more_than_there_is_is_refused(
    config: LaunchConfig, per_run: int | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        divide_devices(config, {}, 9, per_run, num_gpus=4, cores=8)
