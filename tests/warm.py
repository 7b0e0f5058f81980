"""A process that has imported what training needs, and becomes the command line for each request.

Imports take most of the time of a short run. Each request is a line of JSON. A command is answered
by the id of the process that was forked for it, `wait` for a process by its exit code, `speed` by
the seconds that the imports took. A host agent that such a command starts on this machine, a run of
a group, or a command of the Python API is a fork of the command, which has imported what it needs;
one that another test starts is a new Python.
"""

import atexit
import functools
import gc
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any, NoReturn

from mjfleet import registry
from mjfleet.cli.train import train
from mjfleet.launch import restart_policy
from mjfleet.utils import child_process
from mjfleet.utils.lasting_imports import lasting_imports
from mjfleet.worker.thread_limits import prepare

MODULES = (
    "mujoco.batch", "mjfleet.env", "mjfleet.rl.runner", "mjfleet.sim.warp_engine",
    "mjfleet.cli.train", "mjfleet.launch.launch_training", "mjfleet.worker.in_process_worker",
    "mjfleet.worker.training", "mjfleet.launch.worker_processes", "mjfleet.launch.hosts.host_agent",
    "mjfleet.worker.torch_process_group", "mjfleet.sim.native_engine", "mjfleet.parts",
    "mjfleet.terms", "mjfleet.loggers.tensorboard_logger", "mjfleet.cli.dispatcher",
    "mjfleet.tools.play.command",
)  # fmt: skip
"""What most requests import."""
LIGHT = ("mjfleet.cli.dispatcher", "mjfleet.cli.train")
"""What every command imports."""
FORKED = {
    "mjfleet.groups.run_queue": child_process.python_module("mjfleet.cli.train"),
    "mjfleet.api.command_process": child_process.python_module("mjfleet.api.command_process"),
}
"""What begins the commands that a module starts and that are forks."""
WRITE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY


def next_request(seconds: float) -> dict[str, Any]:
    """Wait, fork, answer: returns in a new process for each command, and never in this one."""
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "wait" in request:
            options = 0 if request["blocks"] else os.WNOHANG
            ended, status = os.waitpid(request["wait"], options)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        elif "speed" in request:
            answer = seconds
        else:
            # What is opened before the answer may be closed by whoever asks, as a pipe's other end.
            streams = [os.open(request.get("in", os.devnull), os.O_RDONLY | os.O_NOCTTY)]
            for name in ("out", "err"):
                streams.append(os.open(request[name], WRITE, 0o666))
            answer = os.fork()
            if answer == 0:
                return request | {"streams": streams}
            for stream in streams:
                os.close(stream)
        print(json.dumps(answer), flush=True)
    sys.exit()


def become(request: dict[str, Any]) -> str:
    """Be as a shell would have started it; returns the module to run."""
    if request.get("session"):
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # The tests themselves may run under nohup.
    if request.get("ignores"):
        signal.signal(request["ignores"], signal.SIG_IGN)
    for number, descriptor in enumerate(request["streams"]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    renew(request["environ"])
    os.chdir(request["cwd"])
    sys.argv = [request["module"], *request["arguments"]]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    exec(request.get("late", ""))
    return request["module"]


def renew(environ: Mapping[str, str]) -> None:
    """Forget what only a new program would not know: streams, variables, the temporary folder."""
    # The streams know what kind of file they wrote to.
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None


def start_program(
    command: Sequence[str], *, stdin: Any, stdout: Any, stderr: Any, env: Any, **options: Any
) -> Any:
    """Take the place of subprocess.Popen, as ChildProcess calls it: fork where one of ours begins.

    These are a host agent, a run of a group and a command of the Python API. Returns what
    ChildProcess knows of a Popen.
    """
    streams = stdin, stdout, stderr
    host_starter = sys.modules.get("mjfleet.launch.hosts.host_starter")
    if host_starter and command[-1] == host_starter.HOST_AGENT:
        module, arguments = "mjfleet.launch.hosts.host_agent", []
    elif any(here in sys.modules and [*command[:4]] == own for here, own in FORKED.items()):
        module, arguments = command[3], [*command[4:]]
    else:
        names = zip(("stdin", "stdout", "stderr"), streams, strict=True)
        return subprocess.Popen(command, env=env, **dict(names), **options)
    pipes = [os.pipe() if stream == subprocess.PIPE else None for stream in streams]
    own = [pipe and pipe[::-1] if stream == 0 else pipe for stream, pipe in enumerate(pipes)]
    with warnings.catch_warnings():  # Other threads wait for messages, and hold no locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        given = [pipe[1] if pipe else stream for stream, pipe in zip(streams, own, strict=True)]
        begin(module, arguments, given, env, **options)
    for pipe in filter(None, own):
        os.close(pipe[1])
    ends = [pipe and os.fdopen(pipe[0], "rb" if stream else "wb")
            for stream, pipe in enumerate(own)]  # fmt: skip
    names = zip(("stdin", "stdout", "stderr"), ends, strict=True)
    return SimpleNamespace(pid=pid, returncode=None, **dict(names))


def begin(
    module: str, arguments: list[str], streams: list[Any], env: Any,
    *, start_new_session: bool, process_group: int | None, preexec_fn: Any,
) -> NoReturn:  # fmt: skip
    """Be the new Python that a command has started; `streams` are as in `subprocess`."""
    # Until its end this process has the objects of the command, none of which may be finalised.
    gc.disable()
    if start_new_session:
        os.setsid()
    elif process_group is not None:
        os.setpgid(0, process_group)
    if preexec_fn:
        preexec_fn()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, stream in enumerate(streams):
        if stream is None:
            continue
        given = nothing if stream == subprocess.DEVNULL else stream
        os.dup2(given if isinstance(given, int) else given.fileno(), number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    atexit._clear()
    renew(env)
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    end(call(importlib.import_module(module).main))


def call(main: Callable[[], object]) -> int:
    """Return the exit code of a process that calls `main` and ends."""
    try:
        main()
    except SystemExit as exited:
        return exited.code if isinstance(exited.code, int) else int(exited.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end(code: int) -> NoReturn:
    """End as the interpreter does, but leave the memory that is shared with the first process.

    Commands whose imports are frozen end by `exit` of C, which takes apart shared libraries. In a
    fork, this copies their memory, and takes half of a short run.
    """
    gc.disable()
    gc.unfreeze()
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    prepare()
    begun = time.monotonic()
    for prelude in sys.argv[1:]:
        exec(prelude)
    if not sys.argv[1:]:
        import wandb  # noqa: F401  # What follows leaves it out.
    with lasting_imports("cuda" if os.path.exists("/dev/nvidiactl") else "cpu"):
        for name in LIGHT if sys.argv[1:] else MODULES:
            importlib.import_module(name)
    seconds = time.monotonic() - begun
    registry.entry_points = functools.cache(registry.entry_points)  # They take 5 ms.
    os.chdir("/")  # Where no tasks are: only bundled ones are imported here.
    with redirect_stdout(io.StringIO()):
        train(["cartpole-balance", "--dry-run"])  # The first of a process takes four times as long.
    for one in weakref.finalize._registry:  # pyright: ignore[reportAttributeAccessIssue]
        one.atexit = False  # Where a fork ends, torch would unregister its operations.
    child_process.subprocess = SimpleNamespace(Popen=start_program)
    restart_policy.FIRST_PAUSE_SECONDS = 0.1
    gc.freeze()  # A collection after a fork would copy the pages of all that is imported.
    end(call(importlib.import_module(become(next_request(seconds))).main))
