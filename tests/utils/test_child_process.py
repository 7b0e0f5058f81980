"""Child processes: their output, their ends, and what is left of them."""

import os
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

from mjfleet.utils.child_process import ChildProcess

PARENT = """
import sys, time
from mjfleet.utils.child_process import ChildProcess
code = "from mjfleet.utils.parent_death import die_with_parent as die; die();" if {ours} else ""
code += "import time; print('ready', flush=True); time.sleep(60)"
child = ChildProcess([sys.executable, "-c", code], is_foreign=not {ours})
while not child.output():
    time.sleep(0.01)
print(child.pid, flush=True)
time.sleep(60)
"""


def python(code: str, **options: Any) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", code], **options)


def test_output_is_kept_while_the_child_runs_and_read_from_its_beginning() -> None:
    code = "import sys; print('a', flush=True); sys.stdin.readline(); print('b'); sys.exit('c')"
    with python(code, stdin=subprocess.PIPE) as child:
        while child.output() != b"a\n":
            assert child.exit_code() is None
        assert child.wait(0.0) is None
        assert child.stdin
        child.stdin.write(b"\n")
        child.stdin.close()
        assert child.wait() == child.exit_code() == 1
        assert child.output() == b"a\nb\n"
        assert child.errors() == "c\n"
        assert child.how_it_ended() == "ended with exit code 1"
    assert child.exit_code() == 1
    assert child.peak_memory > 1 << 20


def test_the_end_of_the_block_leaves_nothing_of_the_group() -> None:
    grandchild = (
        "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"
    )
    with python(grandchild) as child:
        assert child.wait(30.0) == 0
        left = psutil.Process(int(child.output()))
    left.wait(30)
    assert child.exit_code() == 0


def test_a_signal_reaches_the_child_or_all_of_its_group() -> None:
    with python("import time; print(1, flush=True); time.sleep(60)") as child:
        while not child.output():
            assert child.exit_code() is None
        child.send_signal(signal.SIGTERM)
        assert child.wait(30.0) == -signal.SIGTERM
        assert child.how_it_ended() == "killed by SIGTERM"
    child.send_signal(signal.SIGTERM)  # Its number may be another process's by now.


@pytest.mark.parametrize("ours", [True, False])
def test_a_child_ends_with_its_parent(ours: bool) -> None:
    command = [sys.executable, "-c", PARENT.format(ours=ours)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    child.wait(30)


def test_a_child_whose_parent_has_ended_already_ends_at_once() -> None:
    code = "from mjfleet.utils.parent_death import die_with_parent as die; die(); print('alive')"
    command = f"MJFLEET_PARENT=1 {sys.executable} -c {code!r}"
    result = subprocess.run(["sh", "-c", command], check=False, capture_output=True)
    assert (result.returncode, result.stdout) == (1, b"")


def test_a_child_may_have_children_that_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MJFLEET_PARENT", str(os.getppid()))  # As in a child of ours.
    with python("print('begun')", is_foreign=True) as child:
        assert child.wait(60) == 0, child.errors()


def test_a_mistake_of_the_users_comes_from_the_child_itself_as_it_is() -> None:
    text = "--config error: x.yaml: no file\nerror: write \u00fc"
    fail = f"def fail(arguments): raise UserError({text!r})"
    run = "from mjfleet.cli.run_command import run_command\n"
    code = f"from mjfleet.errors import UserError\n{run}{fail}\nexit(run_command(fail, []))"
    with python(code) as child:
        assert child.wait(30.0) == 2
        assert child.mistake() == text
    # What a child of ours starts otherwise has no part in it.
    within = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}]); exit(2)"
    code = f"{run}run_command(lambda words: exec({within!r}), [])"
    with python(code) as child:
        assert child.wait(30.0) == 2
        assert (child.mistake(), child.errors()[:7]) == ("", "error: ")
