"""A process that has imported what training needs, and becomes the command line for each request.

Imports take most of the time of a short run. Each request is a line of JSON; the answer, a line
with the exit code, comes when the process that was forked for it has ended.
"""

import atexit
import gc
import importlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from mjfleet.worker.thread_limits import prepare

MODULES = (
    "mujoco.batch", "mjfleet.env", "mjfleet.rl.runner", "mjfleet.sim.warp_engine",
    "mjfleet.cli.train", "mjfleet.launch.launch_training", "mjfleet.worker.in_process_worker",
    "mjfleet.worker.training",
)  # fmt: skip
"""What most requests import."""


def next_request() -> dict[str, Any]:
    """Wait, answer, fork: returns in a new process for each request, and never in this one."""
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            return json.loads(line)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()


def become(request: dict[str, Any]) -> str:
    """Be as a shell would have started it; returns the module to run."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(request["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    err = os.open(request["err"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, descriptor in enumerate((nothing, out, err)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["cwd"])
    sys.argv = [request["module"], *request["arguments"]]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    return request["module"]


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


def end(code: int) -> None:
    """End as the interpreter does, but leave the memory that is shared with the first process."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    prepare()
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()  # A collection after a fork would copy the pages of all that is imported.
    end(call(importlib.import_module(become(next_request())).main))
