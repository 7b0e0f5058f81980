"""A worker is killed at the moment at which it writes a file of its run: nothing is lost.

`--kills 100` kills more often, see docs/reliability.md.
"""

import ctypes
import json
import os
import random
import select
import signal
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from mjfleet.runs.attempts import attempts_in
from mjfleet.runs.named_run import read_run

from ..conftest import MODULES, SMALL, Run, ask, only_run, rows
from .test_damaged_runs import call

TASK = "cartpole-balance"
FLAGS = (*SMALL, "--agent.save-interval", "1", "--keep-checkpoints", "3")
MODIFY, MOVED_TO, CREATE, DELETE = 0x2, 0x80, 0x100, 0x200  # Events of inotify(7).
IN_ATTEMPT = ("*plan.json*", "plan.json", "*config.yaml*", "config.yaml")
"""What an attempt writes into a folder that is made for it: begun, and whole."""
WRITTEN = 0  # No event: its folder is made for it.
MOMENTS = (
    (CREATE, ".model_"), (MODIFY, ".model_"), (MOVED_TO, "model_"), (DELETE, "model_"),
    (MODIFY, "metrics.csv"), (CREATE, ".metrics.csv"), (MOVED_TO, "metrics.csv"),
    (CREATE, ".run.json"), (MODIFY, ".run.json"),
    (CREATE, ".current"), (MOVED_TO, "current"), *((WRITTEN, name) for name in IN_ATTEMPT),
)  # fmt: skip
AT_START = (".metrics.csv", "metrics.csv", ".run.json", ".current", "current")
"""What is written once, or for the first time, at the start."""


class Watch:
    """Sees what happens to the files of some folders at once, by inotify."""

    def __init__(self, *folders: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._queue = libc.inotify_init1(os.O_NONBLOCK)
        for folder in folders:
            mask = MODIFY | MOVED_TO | CREATE | DELETE
            assert libc.inotify_add_watch(self._queue, bytes(folder), mask) >= 0

    def wait_for(self, kind: int, name: str, seconds: float) -> bool:
        """Return whether this happens to a file whose name begins so, within some seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self._queue], [], [], left)[0]:
                return False
            data = os.read(self._queue, 2**16)
            while data:
                _, mask, _, length = struct.unpack_from("iIII", data)
                found = data[16 : 16 + length].rstrip(b"\0").decode()
                data = data[16 + length :]
                if mask & kind and found.startswith(name):
                    return True
        return False

    def close(self) -> None:
        os.close(self._queue)


def wait_for_file(attempts: Path, name: str, number: int) -> bool:
    """Return whether an attempt begins to write a file, or has written it, within some seconds."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        # What a killed process has left of an attempt is removed meanwhile.
        with suppress(FileNotFoundError):
            if any(attempts.glob(f"{number}/{name}")):
                return True
    return False


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_kill_inside_of_a_write_loses_nothing(
    run: Run, tmp_path: Path, warm: "subprocess.Popen[str]", pytestconfig: pytest.Config
) -> None:
    kills = int(str(pytestconfig.getoption("--kills")))
    chance = random.Random(pytestconfig.getoption("--seed"))
    assert run("train", TASK, *FLAGS, "--agent.max-iterations", "3").returncode == 0
    run_dir, newest = only_run(tmp_path), 3
    more = ["train", TASK, "--resume", str(run_dir), "--agent.max-iterations", "1000000"]
    killed: dict[str, int] = {}
    while sum(killed.values()) < kills:
        kind, name = MOMENTS[sum(killed.values()) % len(MOMENTS)]
        number = len(attempts_in(run_dir)) + 1
        watch = Watch(run_dir, run_dir / "checkpoints", run_dir / "attempts")
        child = ask(warm, module=MODULES["train"], arguments=more[1:], cwd=str(tmp_path),
                    environ=dict(os.environ), out=str(tmp_path / "out"),
                    err=str(tmp_path / "err"))  # fmt: skip
        later = 0 if name in AT_START else chance.randrange(4)
        if kind == WRITTEN:
            was_seen = wait_for_file(run_dir / "attempts", name, number)
        else:
            was_seen = all(watch.wait_for(kind, name, 60) for _ in range(1 + later))
        time.sleep(chance.choice([0.0, chance.uniform(0, 0.003)]))
        os.kill(child, signal.SIGKILL)
        code = ask(warm, wait=child, blocks=True)
        assert code == -signal.SIGKILL, (tmp_path / "err").read_text()
        watch.close()
        assert was_seen, (name, (tmp_path / "err").read_text())
        killed[name] = killed.get(name, 0) + 1

        found = read_run(run_dir, "").with_checkpoint()
        assert found.notes == ()
        assert found.iteration is not None
        assert found.iteration >= newest
        newest = found.iteration
        iterations = [int(row["iteration"]) for row in rows(run_dir)]
        assert iterations[:newest] == list(range(1, newest + 1))
        code, said = call("runs", "--json", "--log-root", str(tmp_path / "logs"))
        (listed,) = json.loads(said)
        assert (code, listed["problem"], listed["status"]) == (0, None, "died")
    more[-1] = str(newest + 2)
    assert run(*more).returncode == 0
    iterations = [int(row["iteration"]) for row in rows(run_dir)]
    assert iterations == list(range(1, newest + 3))
    assert not list(run_dir.rglob("*.tmp"))
    state = torch.load(run_dir / f"checkpoints/model_{newest + 2}.pt", weights_only=True)
    assert all(value.isfinite().all() for value in state["actor_state_dict"].values())
    print(f"{killed} killed, {newest + 2} iterations")
