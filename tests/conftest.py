"""What the tests share: how to run the command line, and which devices are at hand."""

import csv
import ctypes.util
import json
import multiprocessing.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest

from mjfleet.config.flags import typed_fields, without_fields
from mjfleet.utils.lasting_imports import lasting_imports
from mjfleet.utils.wait_until import wait_until

if TYPE_CHECKING:
    from hypothesis import settings  # Property tests need it, and those of a GPU run without it.

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Refusal = Callable[..., str]
Output = Callable[..., str]


MODULES = {
    "train": "mjfleet.cli.train",
    "mjfleet": "mjfleet.cli.dispatcher",
    "play": "mjfleet.tools.play.command",
    "python": "script",
}
"""The module behind each command; "python" runs a file, with this process's imports behind it."""
LATE = (
    "TMPDIR", "TORCHRUNX_LOG_DIR", "MJFLEET_TASKS", "WANDB_MODE", "RANK", "COLUMNS", "DISPLAY",
    "WAYLAND_DISPLAY", "XDG_CACHE_HOME", "SLURM_RESTART_COUNT",
)  # fmt: skip
"""Environment variables that act after imports."""
PATIENCE = 600.0
"""Seconds for what must happen, however slow the machine is: less than a test's time limit."""
SLOW_LIMIT = 7200
"""Seconds that a test marked `slow` may take."""
WARM_SECONDS = 3.0
"""How long the warm process takes to import everything on the reference machine, when quiet."""


def changed(words: Sequence[str], *flags: str) -> tuple[str, ...]:
    """Return the words of a command with flags in the place of those that say something else."""
    return *without_fields(words, typed_fields(flags)), *flags


HEAVY = (
    "torch", "warp", "mujoco", "mujoco_warp", "rsl_rl", "tensordict", "wandb", "torchrunx", "skrl",
    "jax", "rl_games",
)  # fmt: skip
SMALL = (
    "--env.num-envs", "16", "--env.episode-seconds", "1", "--agent.num-steps-per-env", "8",
)  # fmt: skip
"""Flags of `train` with which an iteration of cartpole-balance takes milliseconds."""
POISON = f"""
import sys
class Poison:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise RuntimeError(f"the command line imported {{name}}")
sys.meta_path.insert(0, Poison())
"""


@pytest.fixture(scope="session", autouse=True)
def temporary_files() -> Iterator[None]:
    """A folder of their own for temporary files: workers of xdist and killed processes leave some.

    Its name is short: a UNIX socket's has a limit.
    """
    multiprocessing.util.get_temp_dir()  # It is removed when Python exits, after the folder.
    with (
        tempfile.TemporaryDirectory(prefix="tests-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", folder)
        patch.setenv("XDG_STATE_HOME", f"{folder}/state")  # Hashes of what runs have written.
        patch.setattr(tempfile, "tempdir", folder)
        yield


@contextmanager
def warm_process(*prelude: str) -> Iterator["subprocess.Popen[str]"]:
    """Start warm.py."""
    command = [sys.executable, str(TESTS / "warm.py"), *prelude]
    pipe = subprocess.PIPE
    # Not where the first test that needs it happens to be.
    options = {"stdin": pipe, "stdout": pipe, "text": True, "bufsize": 1, "cwd": REPOSITORY}
    with subprocess.Popen(command, **options) as process:
        yield process
        process.communicate()


@pytest.fixture(scope="session")
def warm(temporary_files: None) -> Iterator["subprocess.Popen[str]"]:
    """See warm.py."""
    with warm_process() as process:
        yield process


@pytest.fixture(scope="session")
def light(temporary_files: None) -> Iterator["subprocess.Popen[str]"]:
    """The same, in which what a light command must not import cannot be imported."""
    with warm_process(POISON) as process:
        yield process


@pytest.fixture(scope="session")
def slowness(warm: "subprocess.Popen[str]") -> float:
    """Return how many times slower than the reference machine this one is now; at least 1.

    A limit that is itself tested, such as that of a hang, is multiplied by it.
    """
    return max(1.0, ask(warm, speed=True) / WARM_SECONDS)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, in which this process is; tasks are those of it, and bundled ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MJFLEET_TASKS", raising=False)
    return tmp_path


def run_here(*words: str) -> int:
    """Run a command, one of MODULES or a part of `mjfleet`, in this process."""
    from mjfleet.cli.run_command import run_command

    name, *arguments = words if words[0] in MODULES else ("mjfleet", *words)
    return run_command(getattr(import_module(MODULES[name]), name), arguments)


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Output:
    """Run a command in this process, which must succeed; return what it printed."""

    def run_well(*words: str) -> str:
        assert run_here(*words) == 0, words
        return capfd.readouterr().out

    return run_well


@pytest.fixture
def refusal(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Refusal:
    """Return the one line with which a command, one of MODULES or a part of `mjfleet`, refuses its
    arguments in an empty folder on a machine without a GPU.

    Nothing else is printed, and nothing is created.
    """
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("TORCHRUNX_LOG_DIR", raising=False)

    def files() -> list[Path]:
        return [path for path in sorted(here.rglob("*")) if "__pycache__" not in path.parts]

    def refuse(*words: str) -> str:
        before = files()
        assert run_here(*words) == 2, words
        shown = capfd.readouterr()
        assert shown.err.startswith("error: ")
        assert shown.err.count("\n") == 1, shown.err
        assert not shown.out
        assert files() == before
        return shown.err

    return refuse


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """Run a command, one of MODULES, in an empty folder, without this process's settings.

    `prelude` is code that comes before all imports, `late` code that comes after them.
    """

    def run_module(
        module: str, *arguments: str, prelude: str = "", late: str = "", **environ: str
    ) -> subprocess.CompletedProcess[str]:
        dropped = ("CUDA_VISIBLE_DEVICES", "TORCHRUNX_LOG_DIR", "MJFLEET_TASKS", "WANDB_MODE")
        inherited = {k: v for k, v in os.environ.items() if k not in dropped}
        is_late = all(name in LATE for name in environ)
        if prelude == POISON or (not prelude and is_late):
            warm = request.getfixturevalue("light" if prelude else "warm")
            return run_warm(warm, module, arguments, inherited | environ, tmp_path, late)
        script = f"{prelude}\nimport sys\nfrom {MODULES[module]} import main\nmain()"
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            check=False,
            cwd=tmp_path,
            env=inherited | environ,
            capture_output=True,
            text=True,
        )

    return run_module


@pytest.fixture
def output(run: Run) -> Output:
    """Run a command as `run` does, which must succeed; return its standard output."""

    def run_well(*words: str, **options: str) -> str:
        done = run(*words, **options)
        if done.returncode:  # An assertion would shorten what was printed.
            pytest.fail(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    return run_well


def run_warm(
    warm: "subprocess.Popen[str]",
    module: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path,
    late: str = "",
) -> "subprocess.CompletedProcess[str]":
    """The same, of a process that has its imports behind it."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        pid = ask(warm, module=MODULES[module], arguments=arguments, cwd=str(cwd),
                  environ=environ, late=late, out=str(out), err=str(err))  # fmt: skip
        code = ask(warm, wait=pid, blocks=True)
        return subprocess.CompletedProcess(list(arguments), code, out.read_text(), err.read_text())


def ask(warm: "subprocess.Popen[str]", **request: Any) -> Any:
    """Send a request to the warm process; return its answer."""
    assert warm.stdin
    assert warm.stdout
    warm.stdin.write(json.dumps(request) + "\n")
    return json.loads(warm.stdout.readline())


class WarmCommand:
    """A command that runs: like `subprocess.Popen`, with its imports behind it.

    Its standard output and errors are pipes, or both are `terminal`, which it also reads. One that
    `ignores` a signal, as a script's background job ignores SIGINT, has a session of its own.
    """

    def __init__(
        self, warm: "subprocess.Popen[str]", cwd: Path, module: str, *arguments: str,
        terminal: str | None = None, environ: Mapping[str, str] | None = None,
        ignores: signal.Signals | None = None, late: str = "",
    ) -> None:  # fmt: skip
        self._warm, self.args, self.returncode = warm, arguments, None
        pipes = [os.pipe(), os.pipe()]
        out, err = (terminal or f"/proc/{os.getpid()}/fd/{write}" for _, write in pipes)
        self.pid = ask(
            warm, module=MODULES[module], arguments=arguments, cwd=str(cwd), out=out, err=err,
            environ=dict(environ or os.environ), session=bool(terminal or ignores),
            ignores=ignores, late=late, **{"in": terminal or os.devnull},
        )  # fmt: skip
        for _, write in pipes:
            os.close(write)
        self.stdout, self.stderr = (os.fdopen(read) for read, _ in pipes)

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = ask(self._warm, wait=self.pid, blocks=False)
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        if not wait_until(lambda: self.poll() is not None, timeout):
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        """Read both pipes to their ends and wait; kill it after the timeout."""
        timer = threading.Timer(timeout, self.kill)
        timer.start()
        with ThreadPoolExecutor() as pool, self.stdout, self.stderr:
            texts = pool.map(lambda stream: stream.read(), (self.stdout, self.stderr))
            out, err = texts
        self.wait(timeout)
        timer.cancel()
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Start = Callable[..., WarmCommand]


@pytest.fixture
def start(tmp_path: Path, warm: "subprocess.Popen[str]") -> Iterator[Start]:
    """Start a command, one of MODULES, in an empty folder; it is killed if the test leaves it."""
    started: list[WarmCommand] = []

    def start_module(module: str, *arguments: str, **options: Any) -> WarmCommand:
        started.append(WarmCommand(warm, tmp_path, module, *arguments, **options))
        return started[-1]

    yield start_module
    for command in started:
        command.kill()
        command.wait()
        command.stdout.close()
        command.stderr.close()


def only_run(root: Path, experiment: str = "cartpole-balance") -> Path:
    """The one run directory of an experiment under `root`/logs."""
    (run_dir,) = (root / "logs" / experiment).iterdir()
    return run_dir


def rows(run_dir: Path) -> list[dict[str, str]]:
    """What metrics.csv holds."""
    with (run_dir / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def read_video(path: Path) -> np.ndarray:
    """All pictures of a video, `(frames, height, width, 3)`."""
    with av.open(path) as video:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)])


LIBRARIES = [ctypes.util.find_library(name) for name in ("EGL", "OSMesa")]
needs_drawing = pytest.mark.skipif(not any(LIBRARIES), reason="neither EGL nor OSMesa is there")


def write_task(root: Path, name: str, config: str, env: str = "", model: str = "") -> Path:
    """Write a task folder of the given sources; returns it."""
    folder = root / name
    folder.mkdir(parents=True)
    for file, text in (("config.py", config), ("env.py", env), ("model.xml", model)):
        if text:
            (folder / file).write_text(text)
    return folder


def copy_task(root: Path, name: str, source: str = "cartpole") -> Path:
    """Copy a bundled task's folder, in which tasks then begin with `name`; returns the copy."""
    folder = shutil.copytree(REPOSITORY / "tasks" / source, root / name)
    config = folder / "config.py"
    config.write_text(config.read_text().replace(f'"{source}', f'"{name}'))
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the modules of tests as a command imports its own, which takes half the time."""
    with lasting_imports("cuda" if os.path.exists("/dev/nvidiactl") else "cpu"):
        return (yield)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Skip what is marked `gpu` on a machine without one; give what is marked `slow` more time."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def drawn(few: int) -> "settings":
    """Return the settings of a property test with `few` examples, or `--draws`."""
    from hypothesis import HealthCheck, settings

    is_asked = settings.get_current_profile_name() == "draws"
    number = settings().max_examples if is_asked else few
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(deadline=None, suppress_health_check=checks, max_examples=number)


Figure = Callable[..., None]
FIGURES: list[tuple[str, float]] = []


@pytest.fixture
def figure() -> Figure:
    """Note how long ago a file was written: the time from a fault, which it marks, to now."""

    def note(case: str, fault: Path, less: float = 0.0) -> None:
        FIGURES.append((case, time.time() - fault.stat().st_mtime - less))

    return note


def pytest_addoption(parser: pytest.Parser) -> None:
    """What docs/reliability.md was made with, and CI does less of."""
    parser.addoption("--figures", action="store_true", help="print how long each fault took")
    parser.addoption("--kills", type=int, default=2, help="processes to kill at random moments")
    parser.addoption("--draws", type=int, help="how much each property test draws")
    parser.addoption("--seed", type=int, default=1, help="which random moments")
    parser.addoption("--all-tasks", action="store_true", help="compile all bundled models on warp")


def pytest_configure(config: pytest.Config) -> None:
    """Have `drawn` draw as much as `--draws` says."""
    if number := config.getoption("--draws"):
        from hypothesis import settings

        settings.register_profile("draws", max_examples=number)
        settings.load_profile("draws")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the figures as a table."""
    if config.getoption("--figures"):
        terminalreporter.section("figures")
        for case, seconds in FIGURES:
            terminalreporter.write_line(f"| {case} | {seconds:.1f} s |")
