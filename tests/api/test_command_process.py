"""Commands in processes of their own: which signals end them when."""

import signal
import time
from pathlib import Path

import psutil

from mjfleet.runs.run_json import read_record
from mjfleet.utils.wait_until import wait_until
from mjfleet.worker.stop_signals import SAME_SIGNAL_SECONDS

from ..conftest import PATIENCE, Start
from ..launch.workers import write_noisy

PARENT = """
from mjfleet.api.command_process import CommandProcess
command = ["train", "noisy", "--gpu-ids", "None", "--run-dir", "run"]
CommandProcess(command, is_shown=True).wait()
"""


def test_a_signal_to_a_script_and_its_run_is_one_signal(start: Start, tmp_path: Path) -> None:
    """The run receives it, and another one when the script has ended."""
    write_noisy(tmp_path, step="while not os.path.exists('go'): __import__('time').sleep(0.01)")
    shown = tmp_path / "shown"
    shown.touch()
    (tmp_path / "script.py").write_text(PARENT)
    script = start("python", "script.py", terminal=str(shown))

    def wait_for(text: str) -> None:
        assert wait_until(lambda: text in shown.read_text(), PATIENCE)

    wait_for("iteration=1/")
    (run,) = psutil.Process(script.pid).children()
    run.send_signal(signal.SIGTERM)
    wait_for("SIGTERM: stopping after this iteration")
    time.sleep(2 * SAME_SIGNAL_SECONDS)
    script.send_signal(signal.SIGTERM)
    script.wait(PATIENCE)
    time.sleep(5 * SAME_SIGNAL_SECONDS)  # Within this time the run notices that.
    (tmp_path / "go").touch()
    run.wait(PATIENCE)
    assert "SIGTERM: stopping at once" not in shown.read_text()
    assert any(tmp_path.glob("run/checkpoints/model_*.pt"))
    assert read_record(tmp_path / "run")["status"] == "stopped"
