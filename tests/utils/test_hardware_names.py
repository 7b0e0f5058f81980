"""How many cores there are, and which GPU MuJoCo draws on where UUIDs tell which are visible."""

import os
from pathlib import Path

import pytest

from mjfleet.utils.hardware_names import rendering_numbers, rendering_variables, usable_cores

UUIDS = ["GPU-a0", "GPU-a1", "GPU-b7"]


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [
        ("GPU-b7", "2"),
        ("GPU-b, GPU-a1", "2,1"),  # CUDA takes the first part of a UUID, too.
        ("GPU-a", None),
        ("GPU-c", None),
        ("GPU-b7,MIG-a0", None),
    ],
)
def test_uuids_of_visible_gpus_become_numbers(visible: str, numbers: str | None) -> None:
    found = rendering_numbers(visible, UUIDS)
    assert found.get("CUDA_VISIBLE_DEVICES") == numbers
    assert bool(found) == (numbers is not None)


@pytest.mark.parametrize("visible", [None, "", "0,1", "MIG-a0", "GPU-unknown"])
def test_what_mujoco_can_read_or_nobody_knows_stays(visible: str | None) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert rendering_variables(environ) == {}


V1, V2 = "4:memory:/m\n1:cpu,cpuacct:{}\n0::/\n", "0::{}\n"


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        (V2.format("/"), {"": "max 100000"}, 8),
        (V2.format("/"), {"": "150000 100000"}, 2),
        (V2.format("/"), {"": "1000 100000"}, 1),
        (V2.format("/a/b"), {"a": "300000 100000", "a/b": "max 100000"}, 3),
        (V2.format("/a/b"), {"": "100000 50000", "a": "max 100000", "a/b": "400000 100000"}, 2),
        (V2.format("/of/the/host"), {"": "300000 100000"}, 3),
        (V1.format("/"), {"cpu": "-1 100000"}, 8),
        (V1.format("/a/b"), {"cpu": "-1 100000", "cpu/a": "100000 50000", "cpu/a/b": "-1 1"}, 2),
        (V1.format("/docker/5e"), {"cpu": "400000 100000"}, 4),
        ("", {}, 8),
    ],
)
def test_a_cpu_quota_counts_as_that_many_cores(
    groups: str, files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for place, text in files.items():
        folder = tmp_path / "sys/fs/cgroup" / place
        folder.mkdir(parents=True, exist_ok=True)
        if place.startswith("cpu"):
            for name, number in zip(("quota", "period"), text.split(), strict=True):
                (folder / f"cpu.cfs_{name}_us").write_text(f"{number}\n")
        else:
            (folder / "cpu.max").write_text(f"{text}\n")
    assert usable_cores(tmp_path) == cores


def test_without_cgroups_the_affinity_decides(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))
