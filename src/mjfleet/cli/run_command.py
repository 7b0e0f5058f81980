"""Runs a command: prints the text of the errors that a user meets, and finds the exit code."""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mjfleet.errors import RankError, Stopped, UserError, WorkerError
from mjfleet.utils.console import discard, open_streams, print_error
from mjfleet.utils.hardware_names import count_gpus, cpu_name, gpu_name
from mjfleet.utils.packages import stack_versions
from mjfleet.utils.parent_death import mistakes_for_parent

LOCAL_RANK_0_SECONDS = 3.0
"""How long the other workers of a host leave its first one to print the error they all have."""
WRONG_PATH = {
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
    errno.ENAMETOOLONG,
}  # fmt: skip
"""What the system says of a file that was named wrongly, or that the user may not use."""


def run_command(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command and return its exit code: 2 for a UserError, 1 for a WorkerError, 128 + the
    signal's number for a signal. Their text is printed without a traceback.
    """
    open_streams()
    tell_parent = mistakes_for_parent()
    try:
        try:
            return _print_versions() if arguments[-1:] == ["--version"] else command(arguments)
        finally:
            print(end="", flush=True)  # Not first at exit, where a failure cannot be handled.
    except UserError as error:
        tell_parent(str(error))
        # Where something else has started several workers on this host, the first one prints it.
        is_first = os.environ.get("LOCAL_RANK", "0") == "0"
        if is_first or os.environ.get("WORLD_SIZE", "1") == "1" or isinstance(error, RankError):
            print_error(f"error: {error}")
        else:
            time.sleep(LOCAL_RANK_0_SECONDS)
        return 2
    except WorkerError as error:
        print_error(str(error))
        return 1
    except Stopped as stopped:
        return 128 + stopped.signal_number
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        return _exit_code_of_file(error, arguments)


def _print_versions() -> int:
    """Print the versions of mjfleet and of what it stands on, and this machine's devices."""
    for name, version in stack_versions().items():
        print(name, version)
    print("CPU", cpu_name())
    for number in range(count_gpus()):
        print(f"GPU {number}", gpu_name(str(number)))
    return 0


def _is_given(file: object, arguments: Sequence[str]) -> bool:
    """Return whether a file is one that arguments name, or lies in or around such a one."""
    if not isinstance(file, str):  # It may be a descriptor, or missing.
        return False
    path = Path(os.path.abspath(file))
    words = [word for argument in arguments for word in (argument, argument.partition("=")[2])]
    given = [Path(os.path.abspath(word)) for word in words if word and word[0] != "-"]
    return any(path.is_relative_to(one) or one.is_relative_to(path) for one in given)


def _exit_code_of_file(error: OSError, arguments: Sequence[str]) -> int:
    """Return the exit code if standard output, or a file of the command line, cannot be used.

    Raises:
        OSError: `error`, if it is about anything else.
    """
    if error.errno in WRONG_PATH and _is_given(error.filename, arguments):
        print_error(f"error: {error.filename}: {error.strerror}.")
        return 2
    try:
        print(flush=True)
    except OSError:
        discard(sys.stdout)
        if isinstance(error, BrokenPipeError):  # As after `| head -1`.
            return 128 + signal.SIGPIPE
        print_error(f"error: standard output: {error.strerror}")
        return 1
    raise error
