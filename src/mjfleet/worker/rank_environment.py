"""A worker's place among all workers, read from the variables of torchrun, srun or mpirun."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from mjfleet.errors import RankError

PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
MPI = {
    "Open MPI": [f"OMPI_COMM_WORLD_{n}" for n in ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")],
    "jsrun": [f"JSM_NAMESPACE_{n}" for n in ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")],
    "MPICH or Intel MPI": ["PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"],
}
"""Where launchers of MPI programs say what torchrun says in PLACE."""
STEP_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID",
    "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST",
)  # fmt: skip
"""Environment variables by which srun tells a task its place in a step."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One worker's place among all of them; by default the only one."""

    rank: int = 0  # Its number among all workers.
    local_rank: int = 0  # Its number among the workers of its host.
    world_size: int = 1  # The number of workers.
    local_world_size: int = 1  # The number of workers of its host.

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "Rank | None":
        """Return the place that torchrun, torchrunx or a scheduler gave this process, if any.

        Raises:
            RankError: WORLD_SIZE is set, but another variable is missing or contradicts it.
        """
        alone = environ.get("WORLD_SIZE", "1") == "1"
        if alone and "LOCAL_RANK" not in environ:
            return None
        needed = ["WORLD_SIZE", "RANK", "LOCAL_RANK"]
        needed += [] if alone else ["MASTER_ADDR", "MASTER_PORT"]
        if environ.get("SLURM_NNODES", "1") != "1":
            needed += ["LOCAL_WORLD_SIZE"]
        try:
            if missing := [name for name in needed if name not in environ]:
                raise ValueError(f"{', '.join(missing)} missing")
            world_size, rank, local_rank = (int(environ[name]) for name in needed[:3])
            local_world_size = int(environ.get("LOCAL_WORLD_SIZE", world_size))
            if not (0 <= local_rank <= rank < world_size and local_rank < local_world_size):
                raise ValueError("these contradict each other")
            if not (alone or 0 < int(environ["MASTER_PORT"]) < 2**16):
                raise ValueError("MASTER_PORT is no port")
            return cls(
                rank=rank,
                local_rank=local_rank,
                world_size=world_size,
                local_world_size=local_world_size,
            )
        except ValueError as error:
            names = dict.fromkeys([*needed, "LOCAL_WORLD_SIZE"])
            given = ", ".join(f"{name}={environ[name]}" for name in names if name in environ)
            raise RankError(
                f"{given}: {error}. A worker that torchrun or a scheduler has started needs "
                f"{', '.join(needed)}; unset WORLD_SIZE to have workers started here."
            ) from None


def torchrun_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return torchrun's variables for a process that srun or mpirun has started; {} for others.

    Variables that are set already are left out.

    Raises:
        RankError: SLURM's variables cannot be understood, or an MPI launcher has started several
            processes, and they cannot find each other.
    """
    if "WORLD_SIZE" in environ:
        return {}
    found = _of_srun(environ) or _of_mpirun(environ)
    return {name: value for name, value in found.items() if name not in environ}


def _of_srun(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a task of a SLURM step.

    Workers meet on the step's first host, at a port (20000 to 39999) made of job and step.
    """
    if environ.get("SLURM_STEP_NUM_TASKS", "1") == "1":
        return {}
    # Nothing else here needs the package, which a machine with few packages may lack.
    from hostlist import BadHostlist, expand_hostlist, parse_slurm_tasks_per_node

    try:
        node = int(environ["SLURM_NODEID"])
        per_node = parse_slurm_tasks_per_node(environ["SLURM_STEP_TASKS_PER_NODE"])
        step = 16 * int(environ["SLURM_JOB_ID"]) + int(environ["SLURM_STEP_ID"])
        return {
            "RANK": environ["SLURM_PROCID"],
            "LOCAL_RANK": environ["SLURM_LOCALID"],
            "WORLD_SIZE": environ["SLURM_STEP_NUM_TASKS"],
            "LOCAL_WORLD_SIZE": str(per_node[node]),
            "GROUP_RANK": str(node),
            "MASTER_ADDR": expand_hostlist(environ["SLURM_STEP_NODELIST"])[0],
            "MASTER_PORT": str(20000 + step % 20000),
        }
    except (LookupError, ValueError, BadHostlist) as error:
        given = ", ".join(f"{name}={environ.get(name, '')[:100]}" for name in STEP_VARIABLES)
        raise RankError(
            f"srun's variables give this task no place: {given} ({error!r}); unset "
            "SLURM_STEP_NUM_TASKS to train outside of its step."
        ) from None


def _of_mpirun(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process that a launcher of MPI programs has started.

    Processes of one host meet on it, at a port (20000 to 39999) made of Open MPI's name of the job.
    Others need MASTER_ADDR and MASTER_PORT.
    """
    for launcher, names in MPI.items():
        pairs = zip(PLACE, names, strict=True)
        found = {ours: environ[theirs] for ours, theirs in pairs if theirs in environ}
        world_size = found.get("WORLD_SIZE", "1")
        if world_size == "1":
            continue
        if found.get("LOCAL_WORLD_SIZE") == world_size:
            found["MASTER_ADDR"] = "127.0.0.1"
            if job := environ.get("PMIX_NAMESPACE"):
                found["MASTER_PORT"] = str(20000 + zlib.crc32(job.encode()) % 20000)
        needed = (*PLACE, "MASTER_ADDR", "MASTER_PORT")
        if missing := [name for name in needed if name not in found and name not in environ]:
            raise RankError(
                f"{launcher} has started {world_size} processes, which need "
                f"{' and '.join(missing)} to meet: the address of rank 0's host and a free port, "
                "passed on by the launcher's option for environment variables (-x or -genv). Or "
                "run `train` without it: mjfleet starts its own workers, on other hosts by --hosts."
            )
        return found
    return {}
