"""Runs a command: prints the text of the errors that a user meets, and finds the exit code."""

import atexit
import ctypes
import errno
import gc
import io
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from mjfleet.errors import RankError, RepeatedError, Stopped, UserError, WorkerError
from mjfleet.utils.child_process import wait_for_own_children
from mjfleet.utils.console import discard, open_streams, print_error
from mjfleet.utils.hardware_names import count_gpus, cpu_name, gpu_name
from mjfleet.utils.packages import is_of_mjfleet, stack_versions
from mjfleet.utils.parent_death import MISTAKE_VARIABLE
from mjfleet.utils.user_folders import have_user_folders

MIN_COLUMNS = 20  # In a narrower terminal, tyro never finishes the layout of help.
LOCAL_RANK_0_SECONDS = 3.0
"""How long the other workers of a host leave its first one to print the error they all have."""
THREAD_SECONDS = 5.0  # How long a command waits at its end for the threads of a task.
FILES = io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom
"""Types of files that may hold what is not written yet."""
WRONG_PATH = {
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
    errno.ENAMETOOLONG,
}  # fmt: skip
"""What the system says of a file that was named wrongly, or that the user may not use."""


def run_and_exit(command: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a command with this process's arguments, and exit with its exit code.

    Python would wait forever for a thread that a task has left.
    """
    codes = list[int]()
    atexit.register(_end_at_once, codes)  # What is registered first is called last.
    wait_for_own_children()
    code = run_command(command, sys.argv[1:])
    codes.append(code)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while Python ends: no traceback.
    this_thread, threads = threading.current_thread(), threading.enumerate()
    others = [thread.name for thread in threads if not thread.daemon and thread is not this_thread]

    def give_up() -> None:
        print_error(
            f"threads still run after {THREAD_SECONDS:g} s, and end now: {', '.join(others)}"
        )
        os._exit(code)

    if others:
        timer = threading.Timer(THREAD_SECONDS, give_up)
        timer.daemon = True
        timer.start()
    sys.exit(code)


def _end_at_once(codes: Sequence[int]) -> None:
    """End this process, with its exit code if there is one, after all that is to be called at exit.

    To take apart what training has imported, as Python would, takes a third of a short run. Where
    CUDA is in use, Python ends in its own way.
    """
    if not gc.get_freeze_count():
        return
    torch = sys.modules.get("torch")
    if not codes or (torch and torch.cuda.is_initialized()):
        gc.unfreeze()  # Libraries complain of objects that are still there.
        return
    open_files = [one for one in gc.get_objects() if type(one) in FILES and not one.closed]
    for file in (*open_files, sys.stdout, sys.stderr):
        file.flush()  # A task may have left one open.
    ctypes.PyDLL(None).exit(codes[0])  # With the GIL: no thread goes on meanwhile.


def run_command(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command and return its exit code: 2 for a UserError, 1 for a WorkerError, 128 + the
    signal's number for a signal. Their text is printed without a traceback.
    """
    open_streams()
    have_user_folders(os.environ)
    if shutil.get_terminal_size().columns < MIN_COLUMNS:
        os.environ["COLUMNS"] = str(MIN_COLUMNS)
    mistake = os.environ.pop(MISTAKE_VARIABLE, None)  # What this process starts has no part in it.
    try:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # ChildProcess blocks it.
            return (
                _print_versions() if arguments[-1:] == ["--version"] else _call(command, arguments)
            )
        finally:
            print(end="", flush=True)  # Not first at exit, where a failure cannot be handled.
    except UserError as error:
        if mistake:
            with suppress(OSError):  # The parent may be gone.
                Path(mistake).write_text(str(error), encoding="utf-8", errors="backslashreplace")
        # Where something else has started several workers on this host, the first one prints it.
        is_first = os.environ.get("LOCAL_RANK", "0") == "0"
        is_first |= os.environ.get("WORLD_SIZE", "1") == "1" or isinstance(error, RankError)
        if is_first and not isinstance(error, RepeatedError):
            print_error(f"error: {error}")
        else:
            time.sleep(LOCAL_RANK_0_SECONDS)
        return error.exit_code
    except WorkerError as error:
        print_error(str(error))
        return 1
    except (Stopped, KeyboardInterrupt) as stopped:
        return 128 + getattr(stopped, "signal_number", signal.SIGINT)
    except OSError as error:
        # os.getcwd names no file where the current folder has been removed.
        is_gone = error.filename is None and os.stat(".").st_nlink == 0
        if is_gone or (error.errno in WRONG_PATH and isinstance(error.filename, str)):
            print_error(f"error: {error.filename or 'the current folder'}: {error.strerror}.")
            return 2
        try:
            print(flush=True)
        except OSError as output:
            return _give_up_output(output)
        raise


def _call(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Call a command; UserError if it needs a part of mjfleet that this installation lacks."""
    try:
        return command(arguments)
    except ModuleNotFoundError as error:
        if not is_of_mjfleet(error):
            raise
        raise UserError(f"this needs {error.name}, which this installation lacks.") from None


def _give_up_output(error: OSError) -> int:
    """Return the exit code of a command whose standard output cannot be written."""
    discard(sys.stdout)
    if isinstance(error, BrokenPipeError):  # As after `| head -1`.
        return 128 + signal.SIGPIPE
    print_error(f"error: standard output: {error.strerror}")
    return 1


def _print_versions() -> int:
    for name, version in stack_versions().items():
        print(name, version)
    print("CPU", cpu_name())
    for number in range(count_gpus()):
        print(f"GPU {number}", gpu_name(str(number)))
    return 0
