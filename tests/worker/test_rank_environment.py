"""A worker's place, read from the variables of torchrun, SLURM's srun and mpirun."""

import re

import pytest

from mjfleet.errors import UserError
from mjfleet.worker.rank_environment import Rank, torchrun_variables

# As SLURM 22.05 sets them for the last task of a step.
STEP = {
    "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NTASKS": "4", "SLURM_LAUNCH_NODE_IPADDR": "::1",
}  # fmt: skip


def test_a_task_of_a_step_is_a_worker() -> None:
    assert torchrun_variables(STEP) == {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "20018",
    }  # fmt: skip
    nodes = STEP | {"SLURM_STEP_NODELIST": "gpu[001-003,9],x"}
    assert torchrun_variables(nodes)["MASTER_ADDR"] == "gpu001"


def test_hosts_may_have_different_numbers_of_workers() -> None:
    uneven = STEP | {"SLURM_STEP_TASKS_PER_NODE": "3(x2),1", "SLURM_STEP_NUM_TASKS": "7"}
    found = [torchrun_variables(uneven | {"SLURM_NODEID": node}) for node in "012"]
    assert [variables["LOCAL_WORLD_SIZE"] for variables in found] == ["3", "3", "1"]


def test_what_is_set_already_stays() -> None:
    added = torchrun_variables(STEP | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5555"})
    assert not {"MASTER_ADDR", "MASTER_PORT"} & added.keys()
    # As within torchrun that srun has started, and as somebody says who wants no fleet.
    assert torchrun_variables(STEP | {"WORLD_SIZE": "8"}) == {}
    # As in a batch script, which has places too, but is no step.
    batch = {name: value for name, value in STEP.items() if "STEP" not in name}
    assert torchrun_variables(batch) == {}
    assert torchrun_variables(STEP | {"SLURM_STEP_NUM_TASKS": "1"}) == {}


OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def test_a_process_of_mpirun_is_a_worker() -> None:
    met = {"MASTER_ADDR": "a", "MASTER_PORT": "5"}
    assert torchrun_variables(OPEN_MPI | met) == {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
    }  # fmt: skip
    one_host = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    found = [torchrun_variables(one_host | {"PMIX_NAMESPACE": job}) for job in ("1@1", "1@1", "2")]
    assert found[0]["MASTER_ADDR"] == "127.0.0.1"
    assert found[0] == found[1] != found[2]
    assert torchrun_variables(MPICH | {"MASTER_PORT": "5"})["MASTER_ADDR"] == "127.0.0.1"
    assert torchrun_variables({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}) == {}


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (OPEN_MPI, "need MASTER_ADDR and MASTER_PORT to meet"),
        (MPICH, "need MASTER_PORT to meet"),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "need LOCAL_RANK and LOCAL_WORLD_SIZE and MASTER"),
    ],
)
def test_processes_that_cannot_meet_are_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        torchrun_variables(environ)


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_NODELIST": "n[1-99999999]"},
        {"SLURM_NODEID": "one"},
        {"SLURM_STEP_TASKS_PER_NODE": "2(x1)"},
    ],
)
def test_a_step_that_cannot_be_is_refused(changes: dict[str, str]) -> None:
    ((name, value),) = changes.items()
    with pytest.raises(UserError, match=re.escape(f"{name}={value}")):
        torchrun_variables(STEP | changes)


TORCHRUN = {
    "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
    "MASTER_ADDR": "a", "MASTER_PORT": "1",
}  # fmt: skip


def test_torchruns_variables_are_a_place() -> None:
    place = Rank(rank=3, local_rank=1, world_size=4, local_world_size=2)
    assert Rank.from_environ(TORCHRUN) == place
    assert Rank.from_environ(torchrun_variables(STEP)) == place
    assert Rank.from_environ({"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}) == Rank()


def test_without_them_there_is_no_place() -> None:
    assert Rank.from_environ({}) is None
    assert Rank.from_environ({"WORLD_SIZE": "1", "RANK": "0"}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "4"}, "RANK=4"),
        ({"RANK": "x"}, "'x'"),
        ({"LOCAL_RANK": "2"}, "LOCAL_RANK=2"),
        ({"MASTER_PORT": None}, "MASTER_PORT missing"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT=x"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is no port"),
        ({"SLURM_NNODES": "2", "LOCAL_WORLD_SIZE": None}, "LOCAL_WORLD_SIZE missing"),
    ],
)
def test_a_place_that_cannot_be_is_refused(changes: dict[str, str | None], message: str) -> None:
    environ = {name: value for name, value in {**TORCHRUN, **changes}.items() if value is not None}
    with pytest.raises(UserError, match=message):
        Rank.from_environ(environ)
