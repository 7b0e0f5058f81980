"""What a person sees on a terminal: the live view of a real run, and the lines of `--plain`."""

import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pyte
import pytest

from mjfleet.loggers.console_logger import ConsoleLogger, sparkline
from mjfleet.loggers.logger import Row
from mjfleet.utils.console import print_line

from ..conftest import Start
from ..launch.workers import write_noisy

COLUMNS, LINES = 100, 40
TERMS = "linear", "yaw", "upright", "fall", "vertical", "torque"
ARGUMENTS = ("--env.num-envs", "8", "--env.episode-seconds", "1", "--agent.max-iterations", "3")

METRICS = """
    def metrics(self):
        return {"speed": self.sim.qvel[:, 0].abs()}
"""

Watch = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def watch(start: Start) -> Watch:
    """Train on a terminal; returns the exit code, and all lines that it shows in the end.

    A signal is sent once the terminal shows a text.
    """

    def train(*arguments: str, stop_at: str | None = None) -> tuple[int, list[str]]:
        screen = pyte.HistoryScreen(COLUMNS, LINES, history=1000)
        stream = pyte.ByteStream(screen)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
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


def test_a_live_view_stays_in_its_place_and_breaks_no_line(watch: Watch, tmp_path: Path) -> None:
    env = write_noisy(tmp_path, step="print(f'step {int(self.steps)} of a task')") / "env.py"
    env.write_text(env.read_text().replace("== 30", "% 60 == 0") + METRICS)
    code, lines = watch("noisy", "--agent.max-iterations", "12")
    assert code == 0
    printed = [f"step {n} of a task" for n in range(60, 289, 60)]
    assert [line for line in lines if line.startswith("step ")] == printed
    (head,) = [line for line in lines if "iteration " in line and "noisy" in line]
    assert "iteration 12/12" in head
    for name in ("return", "nothing", "speed", "value loss", "learning rate", "steps per second"):
        assert sum(name in line for line in lines) == 1, name
    assert sum(line.startswith("run directory:") for line in lines) == 2
    text = "\n".join(lines)
    assert text.index(printed[-1]) < text.index("iteration 12/12") < text.rindex("run directory:")


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


@pytest.mark.slow
def test_plain_prints_a_line_for_each_iteration_and_quiet_none(
    watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = watch("cartpole-balance", *ARGUMENTS, "--plain")
    assert code == 0
    numbers = [line.split()[0] for line in lines if line.startswith("iteration=")]
    assert numbers == [f"iteration={i}/3" for i in range(1, 4)]
    assert any(line.startswith("run directory:") for line in lines)
    ConsoleLogger(3, view="quiet").iteration(make_row(1, 12.5, evaluated=None))
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


def test_a_curve_leaves_out_what_cannot_be_drawn() -> None:
    inf = float("inf")
    assert sparkline([0.0, float("nan"), 1.0, inf, -inf, 1e300, 2.0]) == "▁▄█"
    assert sparkline([float("nan")]) == ""


def make_row(iteration: int, size: float, evaluated: float | None) -> Row:
    """An iteration whose numbers are as long as `size` is when it is printed."""
    return {
        "iteration": iteration, "world_size": 64, "total_steps": 123_456_789_012,
        "global_steps_per_second": 9_876_543, "mean_return": size, "mean_episode_length": 1000.0,
        "mean_reward": size, **dict.fromkeys((f"reward/{name}" for name in TERMS), -0.123456),
        "eval/return": evaluated, "loss/value": abs(size), "loss/entropy": size,
        "learning_rate": 1.2345e-05, "action_std": abs(size), "collect_seconds": 1.0,
        "learn_seconds": 1.0, "slowest_rank": 63, "wait_seconds": size, "collective_seconds": size,
    }  # fmt: skip


def test_a_line_has_the_ten_numbers_that_matter_in_160_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = ConsoleLogger(99_999)
    logger.iteration(make_row(99_998, -1.23456e-05, evaluated=-1.23456e-05))
    logger.iteration(make_row(99_999, 12.5, evaluated=None))
    longest, usual = capsys.readouterr().out.splitlines()
    assert len(longest) <= 160
    names = [part.partition("=")[0] for part in longest.split()]
    assert names == [
        "iteration", "return", "length", "reward", "eval", "value_loss", "std", "lr",
        "steps/s", "left",
    ]  # fmt: skip
    values = dict(part.split("=") for part in usual.split())
    assert set(names) - set(values) == {"eval"}  # Only in iterations that had one.
    assert (values["iteration"], values["return"]) == ("99999/99999", "12.5")
    assert (values["lr"], values["steps/s"], values["left"]) == ("1.23e-05", "9876543", "0:00:00")
