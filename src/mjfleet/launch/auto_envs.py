"""Replaces `--env.num-envs auto` in a launch plan by a number. Runs in the launcher.

All workers use the smallest answer of any of them. This host's are measured from here, those of
other hosts by their host agents, and a worker that something else has started measures for itself.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import timedelta

from mjfleet.autotune.num_envs_search import find_num_envs, recall
from mjfleet.launch.host_starter import HostConnections, refuse
from mjfleet.launch.launch_plan import LaunchPlan
from mjfleet.utils.console import print_line
from mjfleet.utils.hardware_names import device_names
from mjfleet.worker.under_torchrun import exchange, meeting_store
from mjfleet.worker.worker_args import WorkerArgs

PATIENCE_SECONDS = 1800.0  # For the answers of others, who may have to compile kernels first.


def with_envs(plan: LaunchPlan, connections: HostConnections | None) -> LaunchPlan:
    """Return the plan with a number of environments; --dry-run only looks up an earlier answer.

    Raises:
        UserError: a trial found a mistake of the user's, or a host does not answer.
        WorkerError: a trial failed.
    """
    if plan.envs_per_worker is not None:
        return plan
    args, notes = plan.worker_args(), plan.notes
    names = device_names([worker.physical for worker in plan.workers])
    if plan.launcher == "outer":
        args = replace(args, devices=(args.devices[plan.rank.local_rank],))
    if plan.config.dry_run:
        known = None if plan.launcher == "hosts" else recall(args, names)
        if known is None:
            return plan
        num_envs = known.num_envs
        notes = (*notes, f"--env.num-envs auto: worlds as measured at {known.when}")
    elif plan.launcher == "outer":
        num_envs = _with_others(plan, args, names)
    elif connections and plan.launcher == "hosts":
        num_envs = _on_hosts(plan, connections)
    else:
        num_envs = find_num_envs(args, names)
    return replace(plan, config=plan.config.with_num_envs(num_envs), notes=notes)


def _with_others(plan: LaunchPlan, args: WorkerArgs, names: Sequence[str]) -> int:
    """Measure for this worker, which something else has started, while the others do so too."""

    def measure() -> str:
        say = print_line if plan.rank.rank == 0 else (lambda _: None)
        return str(find_num_envs(args, names, say=say))

    if plan.world_size == 1:
        return int(measure())
    timeout = timedelta(seconds=plan.config.collective_timeout)
    patience = timedelta(seconds=PATIENCE_SECONDS)
    told = exchange(meeting_store(plan.rank), plan.rank, measure, timeout, patience)
    num_envs = min(map(int, told))
    if plan.rank.rank == 0:
        _announce(num_envs, f"rank {told.index(str(num_envs))}")
    return num_envs


def _on_hosts(plan: LaunchPlan, connections: HostConnections) -> int:
    """Have all host agents measure at the same time."""
    print_line("--env.num-envs auto: measuring on all hosts how many worlds train fastest")
    requests = {}
    for host in connections:
        physical = [worker.physical for worker in plan.workers_of(host.name)]
        args = asdict(plan.worker_args(host.name))
        requests[host] = {"measure": args, "physical": physical}
    answers = connections.ask(requests, PATIENCE_SECONDS)
    refuse({host: [a["error"]] for host, a in answers.items() if "error" in a})
    for host, answer in answers.items():
        print_line(f"{host}:\n{answer['said']}")
    slowest = min(answers, key=lambda host: answers[host]["num_envs"])
    num_envs: int = answers[slowest]["num_envs"]
    _announce(num_envs, str(slowest))
    return num_envs


def _announce(num_envs: int, slowest: str) -> None:
    print_line(f"{num_envs} worlds per worker, the answer of {slowest}: the smallest one counts")
