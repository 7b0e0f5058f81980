"""What the launcher makes of the hosts' answers, which are made up here."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mjfleet.config import LaunchConfig, TrainConfig
from mjfleet.errors import UserError
from mjfleet.launch.hosts.host_channel import Answer, Message
from mjfleet.launch.hosts.host_inventory import AskInventory, HostInventory, host_inventory
from mjfleet.launch.hosts.host_starter import HostConnection, HostConnections
from mjfleet.launch.hosts.preflight import find_meeting_address, preflight
from mjfleet.registry import FoundTask, discover


class Host:
    """A host elsewhere, by its name."""

    is_here = False

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


class Hosts:
    """Hosts that give these answers to each kind of question, or none."""

    def __init__(self, **facts: HostInventory | None) -> None:
        self.facts = facts
        self.meeting: Any = None
        self.unreachable: set[str] = set()
        self._hosts = [Host(name) for name in facts]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def leave_out(self, hosts: Iterable[Host]) -> None:
        self._hosts = [host for host in self._hosts if host not in list(hosts)]

    def ask(self, requests: Mapping[Host, Message], seconds: float) -> dict[Host, Message]:
        del seconds
        return {host: self._answer(host.name, request) for host, request in requests.items()}

    def _answer(self, name: str, request: Message) -> Message:
        if (facts := self.facts[name]) is None:
            return Answer(error="no route")
        if isinstance(request, AskInventory):
            return replace(facts, has_token=facts.has_token and Path(request.token).exists())
        return Answer(error="timed out") if name in self.unreachable else Answer(4711)


@pytest.fixture
def found() -> FoundTask:
    return discover({}).find("cartpole-balance")


@pytest.fixture
def config(found: FoundTask, tmp_path: Path) -> TrainConfig:
    return replace(found.defaults(), log_root=str(tmp_path), cpu_workers=2)


def facts(found: FoundTask, name: str, **changes: Any) -> HostInventory:
    classes = (*map(str, changes.pop("classes", ())),)
    packages = found.defaults().agent.packages
    here = host_inventory(AskInventory(str(found.folder), packages, classes=classes))
    number = name[-1]
    made = replace(here, identity=name, has_token=True, cores=4, visible=None)
    made = replace(made, address=f"10.0.0.{number}", launcher_address="10.0.0.9")
    return replace(made, **changes)


def check(hosts: Hosts, found: FoundTask, config: TrainConfig, is_restart: bool = False) -> Any:
    return preflight(cast("HostConnections", hosts), found, config, is_restart)


def test_hosts_that_fit_are_used_and_meet_at_the_first(
    found: FoundTask, config: TrainConfig
) -> None:
    hosts = Hosts(node1=facts(found, "node1"), node2=facts(found, "node2", cores=8))
    used = check(hosts, found, config)
    assert [(host.host, host.cores, len(host.names)) for host in used] == [
        ("node1", 4, 2),
        ("node2", 8, 2),
    ]
    assert hosts.meeting == ("10.0.0.1", 4711)


def test_all_that_is_wrong_is_named_at_once(found: FoundTask, config: TrainConfig) -> None:
    good = facts(found, "node1")
    hosts = Hosts(
        node1=replace(good, has_token=False),
        node2=facts(found, "node2", versions=dict(good.versions) | {"torch": "1.0"}),
        node3=facts(found, "node1"),
        node4=facts(found, "node4", task={}),
        node5=facts(found, "node5", code=dict(good.code) | {"errors.py": "0"}),
        node6=None,
    )
    with pytest.raises(UserError) as error:
        check(hosts, found, config)
    for text in (
        "6 of the hosts",
        "node1: it does not share the folder",
        "node2: it has torch 1.0 (here: ",
        "node3: it is the same host as node1",
        "node4: it has no task folder",
        "node5: its mjfleet differs from this host's in errors.py",
        "node6: no route",
    ):
        assert text in str(error.value)


def test_a_learner_beside_the_tasks_is_compared(config: TrainConfig, tmp_path: Path) -> None:
    learner, other = tmp_path / "mine.py", tmp_path / "other/mine.py"
    other.parent.mkdir()
    learner.write_text("number = 1\n")
    other.write_text("number = 2\n")
    found = discover({}, tasks_dir=str(tmp_path)).find("cartpole-balance")
    algorithm = replace(config.agent.algorithm, name="mine:Learner")
    config = replace(config, agent=replace(config.agent, algorithm=algorithm))
    node1, node2 = (facts(found, name, classes=[learner]) for name in ("node1", "node2"))
    check(Hosts(node1=node1, node2=node2), found, config)
    for file in (other, tmp_path / "missing.py"):
        (seen,) = facts(found, "node2", classes=[file]).classes.values()
        hosts = Hosts(node1=node1, node2=replace(node2, classes={str(learner): seen}))
        with pytest.raises(UserError, match=f"node2: what trains differs .* in {learner}: copy"):
            check(hosts, found, config)


def test_a_restart_continues_without_lost_hosts_if_enough_are_left(
    found: FoundTask, config: TrainConfig
) -> None:
    def lost() -> Hosts:
        return Hosts(node1=facts(found, "node1"), node2=None)

    used = check(lost(), found, replace(config, min_hosts=1), is_restart=True)
    assert [host.host for host in used] == ["node1"]
    for minimum in (None, 2):
        with pytest.raises(UserError, match="node2: no route"):
            check(lost(), found, replace(config, min_hosts=minimum), is_restart=True)
    with pytest.raises(UserError, match="node2: no route"):
        check(lost(), found, replace(config, min_hosts=1))


def test_a_host_that_cannot_reach_the_first_is_named(found: FoundTask) -> None:
    hosts = Hosts(node1=facts(found, "node1"), node2=facts(found, "node2"))
    hosts.unreachable = {"node2"}
    known = cast("dict[HostConnection, HostInventory]", {h: hosts.facts[h.name] for h in hosts})
    connections = cast("HostConnections", hosts)
    with pytest.raises(UserError, match=r"node2: it cannot reach node1 at 10\.0\.0\.1, port 4711"):
        find_meeting_address(connections, known, LaunchConfig())
    loopback = LaunchConfig(launcher_address="127.0.0.1")
    with pytest.raises(UserError, match=r"a loopback address.* as 10\.0\.0\.9 by node2\.$"):
        find_meeting_address(connections, known, loopback)
    known[next(iter(known))] = facts(found, "node1", address="")  # An ssh that tells none.
    with pytest.raises(UserError, match="by which ssh reaches node1 is not known: set"):
        find_meeting_address(connections, known, LaunchConfig())
    for nowhere in ("a..b", "no host"):
        with pytest.raises(UserError, match=f"--launcher-address {nowhere} is not known"):
            find_meeting_address(connections, known, LaunchConfig(launcher_address=nowhere))
    # This host's own variable is of the user's connection to it.
    for host in hosts:
        host.is_here = True
    with pytest.raises(UserError, match=r"one that they can reach\.$"):
        find_meeting_address(connections, known, loopback)
