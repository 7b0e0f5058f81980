"""How many cores a process may use."""

import os
from pathlib import Path

import pytest

from mjfleet.utils.hardware_names import usable_cores


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("/", {"": "max 100000"}, 8),
        ("/", {"": "150000 100000"}, 2),
        ("/", {"": "1000 100000"}, 1),
        ("/a/b", {"": "100000 50000", "a": "max 100000", "a/b": "400000 100000"}, 2),
        ("/of/the/host", {"": "300000 100000"}, 3),
        (None, {}, 8),
    ],
)
def test_a_cpu_quota_counts_as_that_many_cores(
    group: str | None,
    files: dict[str, str],
    cores: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    if group is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(f"4:memory:/m\n0::{group}\n")
    for place, text in files.items():
        folder = tmp_path / "sys/fs/cgroup" / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(f"{text}\n")
    assert usable_cores(tmp_path) == cores


def test_a_cpu_quota_of_version_1_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    (tmp_path / "proc/self").mkdir(parents=True)
    groups = "5:memory:/m\n4:cpuset:/s\n3:cpu,cpuacct:/user/job\n"
    (tmp_path / "proc/self/cgroup").write_text(groups)
    for place, quota in ((".", -1), ("user", 550_000), ("user/job", -1)):
        folder = tmp_path / "sys/fs/cgroup/cpu" / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == 6
