"""Names of the run's hosts: --hosts, or SLURM's list of nodes. Runs in the launcher."""

import socket
from collections.abc import Mapping
from contextlib import suppress

from mjfleet.config import LaunchConfig
from mjfleet.config.launch_config import MAX_HOSTS
from mjfleet.errors import UserError
from mjfleet.worker.rank_environment import Rank

LOCALHOST = "localhost"  # The one host of a run without --hosts, also in names of log files.
MAX_STEP_ID = 0xFFFFFFF0
"""SLURM_MAX_NORMAL_STEP_ID of slurm.h: the number of a step that srun has started is lower. A batch
script, and the shell of `salloc`, are steps with higher numbers, on one node."""


def temporary_name(pid: int) -> str:
    """Return how the name of a host agent's folder for temporary files begins."""
    return f"mjfleet-{pid}-{socket.gethostname()}-"


def choose_hosts(config: LaunchConfig, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the run's hosts, rank 0's first; `[LOCALHOST]` if this is the only one.

    Raises:
        UserError: SLURM does not say, this host has two of the names, or something else has
            started workers already.
    """
    names = config.hosts
    if Rank.from_environ(environ):
        if names:
            raise UserError(
                "--hosts starts workers itself, but torchrun or a scheduler has started these."
            )
        return [LOCALHOST]
    # A process that srun has started beside others starts no workers on other nodes.
    is_alone = environ.get("SLURM_STEP_NUM_TASKS", "1") == "1"
    is_wide = is_alone and environ.get(f"{_slurm_scope(environ)}_NUM_NODES", "1") != "1"
    if names == ["slurm"] or (is_wide and not names):
        names = _slurm_hosts(environ)
    own_names = [name for name in names if is_here(name)]
    if len(own_names) > 1:
        addresses = ", ".join(f"{name} is {resolve(name)}" for name in own_names)
        raise UserError(
            f"--hosts: {' and '.join(own_names)} are both this host, since their names resolve to "
            f"{addresses} here. Correct /etc/hosts, or give addresses instead of names."
        )
    if config.min_hosts is not None and config.min_hosts > max(1, len(names)):
        raise UserError(f"--min-hosts is {config.min_hosts}, but there are {len(names)} hosts.")
    return [LOCALHOST] if names == own_names else list(names)


def is_here(name: str) -> bool:
    """Return whether a name resolves to an address of this host."""
    if name == LOCALHOST:
        return True
    address = resolve(name)
    if address is None:
        return name == socket.gethostname()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def _slurm_scope(environ: Mapping[str, str]) -> str:
    """Return the prefix of the variables of SLURM that count: the srun step's, or the job's."""
    number = environ.get("SLURM_STEP_ID", "")
    return "SLURM_STEP" if number.isdecimal() and int(number) < MAX_STEP_ID else "SLURM_JOB"


def _slurm_hosts(environ: Mapping[str, str]) -> list[str]:
    variable = f"{_slurm_scope(environ)}_NODELIST"
    nodes = environ.get(variable)
    if nodes is None:
        raise UserError("--hosts slurm: this is no SLURM allocation; salloc or sbatch makes one.")
    # Only this needs the package, which a machine with few packages may lack.
    from hostlist import BadHostlist, expand_hostlist

    try:
        names = expand_hostlist(nodes)
    except BadHostlist as error:
        raise UserError(f"--hosts slurm: {variable}={nodes}: {error}") from None
    if len(names) > MAX_HOSTS:
        raise UserError(
            f"--hosts slurm: {variable}={nodes} are {len(names)} hosts; at most "
            f"{MAX_HOSTS} can take part."
        )
    return names


def resolve(name: str) -> str | None:
    """Return the first address of a name or an address; None: it is not known."""
    try:
        return str(socket.getaddrinfo(name, None)[0][4][0])
    except (OSError, UnicodeError):  # What is no name at all.
        return None
