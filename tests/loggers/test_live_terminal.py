"""What a person sees on a terminal, drawn by a terminal emulator from a real run."""

import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyte
import pytest

from mjfleet.loggers import live_terminal
from mjfleet.loggers.console_logger import ConsoleLogger
from mjfleet.utils.console import print_line

from ..conftest import Start, write_task
from .test_console_logger import metrics

COLUMNS, LINES = 100, 40
ARGUMENTS = ("--env.num-envs", "8", "--env.episode-seconds", "1", "--agent.max-iterations", "3")

CONFIG = """
from mjfleet.config import AgentConfig, EnvConfig, Task
TASKS = {"talking": Task(summary="It prints.", env=EnvConfig(num_envs=8), env_class="env:Talking")}
"""
ENV = """
import torch
from mjfleet.env import Env
class Talking(Env):
    model_file = "model.xml"
    def setup(self): self.steps = self.add_state("steps", dtype=torch.long, shared=True)
    def reset_worlds(self, mask): pass
    def apply(self, action):
        self.sim.ctrl[:] = action
        self.steps += 1
        if self.steps % 60 == 0:
            print(f"step {int(self.steps)} of a task that talks")
    def observe(self): return {"actor": self.sim.qpos, "critic": self.sim.qpos}
    def rewards(self): return {"alive": torch.ones(self.num_envs)}
    def metrics(self): return {"speed": self.sim.qvel[:, 0].abs()}
"""
MODEL = """
<mujoco><worldbody><body><joint name="j" type="hinge"/><geom size="0.1"/></body></worldbody>
<actuator><motor joint="j"/></actuator></mujoco>
"""

Watch = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def watch(start: Start) -> Watch:
    """Train on a terminal; returns the exit code, and all lines that it shows in the end.

    On the way the terminal may be resized, and then a signal sent once it shows a text.
    """

    def train(
        *arguments: str, resize_to: int | None = None, stop_at: str | None = None
    ) -> tuple[int, list[str]]:
        screen = pyte.HistoryScreen(COLUMNS, LINES, history=1000)
        stream = pyte.ByteStream(screen)
        ours, theirs = pty.openpty()
        _resize(ours, COLUMNS)
        environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        process = start(
            "train", *arguments, terminal=os.ttyname(theirs),
            environ=environ | {"TERM": "xterm-256color"},
        )  # fmt: skip
        os.close(theirs)
        while True:
            try:
                data = os.read(ours, 2**16)
            except OSError:  # Nobody has the other end open any more.
                break
            stream.feed(data)
            if resize_to and any("iteration" in line for line in screen.display):
                screen = _wrapped(screen, resize_to)
                stream = pyte.ByteStream(screen)
                _resize(ours, resize_to)
                process.send_signal(signal.SIGWINCH)
                resize_to = None
            if stop_at and any(stop_at in line for line in screen.display):
                process.send_signal(signal.SIGINT)
                stop_at = None
        os.close(ours)
        above = [
            "".join(line[i].data for i in range(screen.columns)) for line in screen.history.top
        ]
        assert not screen.cursor.hidden
        return process.wait(), [line.rstrip() for line in (*above, *screen.display)]

    return train


def _resize(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))


def _wrapped(screen: pyte.Screen, columns: int) -> pyte.HistoryScreen:
    """The screen of a terminal that has become narrower and wraps its lines, as most do."""
    shown, row = [line.rstrip() for line in screen.display], screen.cursor.y
    narrow = pyte.HistoryScreen(columns, LINES, history=1000)
    stream = pyte.Stream(narrow)
    stream.feed("\r\n".join(shown[: row + 1]) + "\x1b7")  # The cursor stays at its text.
    stream.feed("\r\n".join(["", *shown[row + 1 :]]).rstrip() + "\x1b8")
    return narrow


def test_nothing_is_left_of_a_view_that_was_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(live_terminal, "REFRESH_SECONDS", 0.0)
    screen = pyte.HistoryScreen(COLUMNS, LINES, history=1000)
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    _resize(ours, COLUMNS)
    before = os.dup(1)
    os.dup2(theirs, 1)  # rich asks it for the size.
    try:
        with open(theirs, "w") as terminal:
            monkeypatch.setattr(sys, "stdout", terminal)
            print_line("above")
            view = ConsoleLogger(max_iterations=99, view="live", task="t")
            view.iteration(metrics(7, 12.5, evaluated=None))
            _show(ours, screen)
            screen = _wrapped(screen, 50)
            _resize(ours, 50)
            view.close()
            _show(ours, screen)
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(ours)
    lines = [line.rstrip() for line in screen.display]
    assert lines[0] == "above"
    for name in ("t  ", "return", "steps per second", "episode length"):
        assert sum(line.startswith(name) for line in lines) == 1, lines


def _show(terminal: int, screen: pyte.Screen) -> None:
    """Show what has been written to a terminal."""
    with suppress(BlockingIOError):
        while data := os.read(terminal, 2**16):
            pyte.ByteStream(screen).feed(data)


def test_a_live_view_stays_in_its_place_and_breaks_no_line(watch: Watch, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "talking", CONFIG, ENV, MODEL)
    code, lines = watch("talking", "--agent.max-iterations", "12")
    assert code == 0
    printed = [f"step {n} of a task that talks" for n in range(60, 289, 60)]
    assert [line for line in lines if line.startswith("step ")] == printed
    (head,) = [line for line in lines if "iteration " in line and "talking" in line]
    assert "iteration 12/12" in head
    for name in ("return", "alive", "speed", "value loss", "learning rate", "steps per second"):
        assert sum(name in line for line in lines) == 1, name
    assert sum(line.startswith("run directory:") for line in lines) == 2
    text = "\n".join(lines)
    assert text.index(printed[-1]) < text.index("iteration 12/12") < text.rindex("run directory:")


@pytest.mark.slow
def test_it_follows_the_size_of_the_terminal(watch: Watch) -> None:
    evaluation = ("--eval-interval", "30", "--eval-envs", "2")
    code, lines = watch("cartpole-balance", *ARGUMENTS[:4], "--agent.max-iterations", "60",
                        *evaluation, resize_to=70)  # fmt: skip
    assert code == 0
    assert sum(line.startswith("evaluated return ") for line in lines) == 1
    (head,) = [line for line in lines if "iteration 60/60" in line]
    assert len(head) <= 70
    assert head.endswith("left")


@pytest.mark.slow
def test_with_several_workers_too_and_leaves_room_for_the_launchers_lines(watch: Watch) -> None:
    code, lines = watch("cartpole-balance", *ARGUMENTS[:4], "--cpu-workers", "2",
                        "--agent.max-iterations", "1000", stop_at=" left")  # fmt: skip
    assert code == 128 + signal.SIGINT
    found = [i for i, line in enumerate(lines) if line.startswith("SIGINT: stopping after this")]
    assert len(found) == 1, lines
    (stopping,) = found
    (head,) = [i for i, line in enumerate(lines) if "iteration " in line]
    assert stopping < head
    assert lines[head].endswith("left")
    assert sum(line.startswith("return ") for line in lines) == 1


def test_plain_prints_a_line_for_each_iteration_and_quiet_none(
    watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = watch("cartpole-balance", *ARGUMENTS, "--plain")
    assert code == 0
    numbers = [line.split()[0] for line in lines if line.startswith("iteration=")]
    assert numbers == [f"iteration={i}/3" for i in range(1, 4)]
    assert any(line.startswith("run directory:") for line in lines)
    ConsoleLogger(3, view="quiet").iteration(metrics(1, 12.5, evaluated=None))
    assert not capsys.readouterr().out


def test_a_terminal_that_goes_away_ends_the_view_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        shown = ConsoleLogger(max_iterations=10, view="live")
        os.close(ours)
        shown.close()
        shown.close()
        print_line("later")
        assert sys.stdout is terminal
    assert len(caplog.records) == 1
