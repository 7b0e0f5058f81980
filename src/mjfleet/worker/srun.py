"""What torchrun would have told a worker that SLURM's `srun` has started."""

import re
from collections.abc import Mapping


def torchrun_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of torchrun for one of several tasks of a SLURM step; empty: it is none.

    Those that are set stay: with WORLD_SIZE, the task has been given a place already, and
    MASTER_ADDR or MASTER_PORT may say where to meet. Otherwise that is the first host of the step,
    at a port between 20000 and 40000 that follows from the numbers of job and step.
    """
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks == "1" or "WORLD_SIZE" in environ:
        return {}
    node, per_node = int(environ["SLURM_NODEID"]), []
    # As in "2(x3),1": two tasks on each of three nodes, one on the fourth.
    for count, repeats in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ["SLURM_STEP_TASKS_PER_NODE"]):
        per_node += [count] * int(repeats or 1)
    # As in "login,gpu[01-03,07]".
    name, number = re.findall(r"^([^,[]+)(?:\[(\d+))?", environ["SLURM_STEP_NODELIST"])[0]
    step = 16 * int(environ["SLURM_JOB_ID"]) + int(environ["SLURM_STEP_ID"])
    found = {
        "RANK": environ["SLURM_PROCID"],
        "LOCAL_RANK": environ["SLURM_LOCALID"],
        "WORLD_SIZE": tasks,
        "LOCAL_WORLD_SIZE": per_node[node],
        "GROUP_RANK": str(node),
        "MASTER_ADDR": name + number,
        "MASTER_PORT": str(20000 + step % 20000),
    }
    return {name: value for name, value in found.items() if name not in environ}
