"""The exceptions whose text is all that a user needs, and the exit code that each becomes."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from mjfleet.utils.console import printable

LOCAL_RANK_0_SECONDS = 3.0
"""How long the other workers of a host leave its first one to print the error they all have."""


class UserError(Exception):
    """A mistake in what the user typed or wrote; the text says what is wrong and what to write."""


class RankError(UserError):
    """A mistake in the variables that give this worker its rank; each worker prints its own."""


class WorkerError(Exception):
    """A worker process has failed; the text holds its traceback."""


class Stopped(BaseException):
    """A signal arrived where nothing needs to be finished first."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def run_command(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command and return its exit code: 2 for a UserError, 1 for a WorkerError, 128 + the
    signal's number for a signal. Their text is printed without a traceback."""
    try:
        try:
            return command(arguments)
        finally:
            print(end="", flush=True)  # Not first at exit, where a failure cannot be handled.
    except UserError as error:
        # Where something else has started several workers on this host, the first one prints it.
        is_first = os.environ.get("LOCAL_RANK", "0") == "0"
        if is_first or os.environ.get("WORLD_SIZE", "1") == "1" or isinstance(error, RankError):
            print(f"error: {printable(str(error))}", file=sys.stderr)
        else:
            time.sleep(LOCAL_RANK_0_SECONDS)
        return 2
    except WorkerError as error:
        print(printable(str(error)), file=sys.stderr)
        return 1
    except Stopped as stopped:
        return 128 + stopped.signal_number
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        return _exit_code_of_output(error)


def _exit_code_of_output(error: OSError) -> int:
    """Return the exit code if standard output cannot be written; raise `error` otherwise."""
    try:
        print(flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Discards what is still buffered.
        if isinstance(error, BrokenPipeError):  # As after `| head -1`.
            return 128 + signal.SIGPIPE
        print(f"error: standard output: {error.strerror}", file=sys.stderr)
        return 1
    raise error
