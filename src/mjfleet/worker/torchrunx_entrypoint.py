"""What a worker that torchrunx has started does first and last. Runs in that worker."""

import faulthandler
import logging
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from mjfleet.utils.console import print_if_read
from mjfleet.utils.parent_death import die_with_parent
from mjfleet.worker.failure_record import Failure
from mjfleet.worker.heartbeat import Heartbeat
from mjfleet.worker.rank_environment import Rank
from mjfleet.worker.stop_signals import StopRequest
from mjfleet.worker.worker_args import WorkerArgs
from mjfleet.worker.worker_main import run_worker


def train_as_torchrunx_worker(args: WorkerArgs) -> None:
    """Train as one of the workers that torchrunx has started.

    A failure is recorded, and the process ends at once: torchrunx would hold an exception back
    until all workers end, while these wait in a collective. The launcher reports the first failure.
    """
    die_with_parent()
    rank = args.rank_of(int(os.environ["LOCAL_RANK"]))
    if args.meeting:
        _join_other_hosts(args, args.meeting, rank)
    heartbeat = Heartbeat.in_file(args.heartbeat_file(rank.local_rank))
    heartbeat.start()
    log_file = args.log_files[rank.local_rank]
    terminal = args.terminal if rank.rank == 0 else None
    stdout, stderr = terminal or (log_file, log_file)
    _redirect_output(stdout, stderr)
    # The agent, whose fork this is, has a handler for its own log: warnings belong in the worker's.
    root = logging.getLogger()
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    # faulthandler writes stacks from C, also when no Python code can run.
    stacks = args.stacks_file(rank.local_rank)
    faulthandler.register(signal.SIGQUIT, stacks.open("a"), all_threads=True)
    faulthandler.enable()
    tempfile.tempdir = None  # The host agent's, for what libraries leave; a task uses the user's.
    # The launcher's signal may follow one that a scheduler has sent to this process as well.
    say = print_if_read if rank.rank == 0 else lambda text: None
    stop = StopRequest(say, ends_from_outside=True)
    code = 1
    try:
        with stop.installed():
            end = run_worker(args, rank, stop, heartbeat, [Path(args.run_dir)])
        if isinstance(end, Failure):
            with open(log_file, "a", errors="backslashreplace") as file:
                file.write(end.traceback)
        else:
            sys.stdout.flush()
            sys.stderr.flush()
            heartbeat.finish(end.stopped_by)
            code = 0
    except BaseException:  # What could not be recorded: the last lines of the log show it.
        traceback.print_exc()
    finally:
        if code:  # At once, without waiting for threads or the parent.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _join_other_hosts(args: WorkerArgs, meeting: tuple[str, int], rank: Rank) -> None:
    """Correct the variables that torchrunx has set, which knows this host alone."""
    os.environ |= {
        "RANK": str(rank.rank),
        "WORLD_SIZE": str(rank.world_size),
        "GROUP_RANK": str(args.node),
        "MASTER_ADDR": meeting[0],
        "MASTER_PORT": str(meeting[1]),
    }


def _redirect_output(stdout: str, stderr: str) -> None:
    for stream, path in ((sys.stdout, stdout), (sys.stderr, stderr)):
        stream.flush()
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY, 0o644)
        os.dup2(file, stream.fileno())
        os.close(file)
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
