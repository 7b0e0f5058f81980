"""Output of rank 0 on its way to a terminal that somebody reads, or nobody."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tty
from contextlib import suppress
from pathlib import Path

import pytest

from mjfleet.runs.run_json import read_record
from mjfleet.utils.wait_until import wait_until

from ..conftest import PATIENCE, SMALL, Start, only_run
from .workers import PAIR, write_noisy

LINES = 20_000
SHOUT = f"""if RANK == 0:
                for i in range({LINES}):
                    print(f"line {{i}}")
                    print(f"error {{i}}", file=sys.stderr)"""

FULL = """
import os
os.set_blocking(1, False)
try:
    while os.write(1, bytes(4096)):
        pass
except BlockingIOError:
    os.set_blocking(1, True)
"""

RELAY = """
import sys, time
from pathlib import Path
import mjfleet.launch.output_relay as output_relay
output_relay.BEHIND_BYTES = 200_000
log = Path(sys.argv[1]) if sys.argv[1:] else None
with output_relay.OutputRelay(log) as relay:
    with open(relay.paths[0], "w") as out:
        for number in range(100_000):
            print("line", number, file=out)
    Path("written").touch()
    while not Path("read").exists():
        time.sleep(0.01)
    with open(relay.paths[0], "w") as out:
        print("line 100000", file=out)
        print("line 100001", file=out)
print("the end")
"""

AT_LAST = """
import os
from mjfleet.launch.output_relay import OutputRelay
for number in range(20):
    with OutputRelay(None) as relay:
        out = os.open(relay.paths[0], os.O_WRONLY | os.O_NOCTTY)
        os.write(out, f"{number}\\n".encode() * 10_000)
        os.close(out)
"""


@pytest.mark.parametrize("late", ["", FULL], ids=("later", "from the first line"))
def test_output_that_nobody_reads_holds_up_no_worker(
    start: Start, tmp_path: Path, late: str
) -> None:
    write_noisy(tmp_path, step=SHOUT)
    process = start("train", "noisy", *PAIR[-4:], late=late)
    assert wait_until(lambda: any(tmp_path.glob("logs/*/*/run.json")), PATIENCE)
    record = only_run(tmp_path, "noisy") / "run.json"
    assert wait_until(lambda: json.loads(record.read_text())["status"] != "running", PATIENCE)
    assert json.loads(record.read_text())["status"] == "finished"
    assert process.poll() is None
    shown, errors = process.communicate()
    assert process.returncode == 0
    # The launcher's own lines may stand within one that the pipe has taken in two parts.
    own = re.findall(r"(?:run directory: |rank 0: |iteration=).*\n", shown)
    rest = re.sub("|".join(map(re.escape, own)), "", shown)
    assert rest.lstrip("\0") == "".join(f"line {number}\n" for number in range(LINES))
    assert errors.splitlines() == [f"error {number}" for number in range(LINES)]


@pytest.mark.parametrize("member", ["", "seed_2"])
def test_output_that_nobody_reads_holds_up_no_stop(
    start: Start, tmp_path: Path, member: str
) -> None:
    run_dir = tmp_path / "run" / member
    several = ("--seeds", "2") if member else ("--cpu-workers", "2")
    flags = (*SMALL, "--agent.max-iterations", "1000000", *several, "--run-dir", "run")
    process = start("train", "cartpole-balance", *flags)
    assert wait_until((run_dir / "metrics.csv").exists, PATIENCE)
    full = os.open(f"/proc/self/fd/{process.stdout.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while os.write(full, bytes(4096)):
            pass
    process.send_signal(signal.SIGTERM)
    assert wait_until(lambda: read_record(run_dir)["status"] == "stopped", PATIENCE)
    os.close(full)
    process.communicate()
    assert (run_dir / "checkpoints/final_model.pt").exists()


@pytest.mark.parametrize("log", [None, "log"])
def test_a_terminal_that_is_too_far_behind_loses_whole_lines_and_says_how_many(
    tmp_path: Path, log: str | None
) -> None:
    command = [sys.executable, "-c", RELAY, *([log] if log else [])]
    whole = "".join(f"line {number}\n" for number in range(100_002))
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert wait_until((tmp_path / "written").exists, PATIENCE)
        assert process.stdout
        shown = ""
        while "line 2000\n" not in shown:
            shown += os.read(process.stdout.fileno(), 1000).decode()
        (tmp_path / "read").touch()
        shown += process.stdout.read()
    assert process.returncode == 0
    if log:
        assert (tmp_path / log).read_text() == whole
    # It may catch up and fall behind again.
    notes = re.findall(r"^lines that were not shown here: (\d+)(; log has them)?$", shown, re.M)
    assert notes
    assert {bool(where) for _, where in notes} == {bool(log)}
    before = shown.partition("lines that were not shown here: ")[0]
    assert whole.startswith(before)
    assert len(before) > 200_000 - 65_536  # The limit, less the piece that is beyond it.
    kept = re.findall(r"^line \d+$", shown, re.M)
    assert sum(int(number) for number, _ in notes) + len(kept) == 100_002
    assert kept == sorted(set(kept), key=lambda line: int(line.split()[1]))
    assert shown.splitlines()[-1] == "the end"


def test_a_terminal_has_all_that_was_written_last() -> None:
    reader, writer = pty.openpty()
    tty.setraw(writer)
    with subprocess.Popen([sys.executable, "-c", AT_LAST], stdout=writer) as process:
        os.close(writer)
        shown = b""
        with suppress(OSError):  # As once nobody has its other end.
            while piece := os.read(reader, 65536):
                shown += piece
    os.close(reader)
    assert process.returncode == 0
    assert shown == b"".join(b"%d\n" % number * 10_000 for number in range(20))
