"""Checks that the hosts of a run fit together and reach each other. Runs in the launcher."""

import ipaddress
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import IO

from mjfleet.config import LaunchConfig, TrainConfig
from mjfleet.errors import UserError
from mjfleet.launch.devices import VISIBLE, Devices, choose_devices
from mjfleet.launch.host_names import resolve
from mjfleet.launch.hosts.host_agent import CONNECT_SECONDS
from mjfleet.launch.hosts.host_channel import Answer, Meet
from mjfleet.launch.hosts.host_inventory import AskInventory, HostInventory, host_inventory
from mjfleet.launch.hosts.host_starter import HostConnection, HostConnections, refuse_hosts
from mjfleet.registry import FoundTask
from mjfleet.utils.console import print_line

INVENTORY_SECONDS = 30.0  # How long a host may take to be connected and to say what it has.
HOST_RETURN_SECONDS = 600.0  # How long hosts that a run needs to start again may be away.
RECONNECT_SECONDS = 5.0  # Time between two attempts to reach them.
NAMED_FILES = 3  # How many files a message names.


class _AwayError(UserError):
    """Some hosts cannot be reached."""


@contextmanager
def reach_hosts(
    names: Sequence[str], found: FoundTask, config: TrainConfig, is_restart: bool
) -> Iterator[tuple[HostConnections, list[Devices]]]:
    """Connect to all hosts for the length of the block; yield what of them the run uses, too.

    When a run starts again, hosts that it needs have HOST_RETURN_SECONDS to come back, such as
    after a boot.

    Raises:
        UserError: see `preflight`.
    """
    deadline = time.monotonic() + HOST_RETURN_SECONDS
    for attempt in count():
        with HostConnections(names, config) as connections:
            try:
                hosts = preflight(connections, found, config, is_restart)
            except _AwayError as error:
                if time.monotonic() > deadline:
                    raise
                if attempt == 0:
                    print_line(f"{error}\nThey have {HOST_RETURN_SECONDS:g} s to come back.")
            else:
                yield connections, hosts
                return
        time.sleep(RECONNECT_SECONDS)


def preflight(
    connections: HostConnections, found: FoundTask, config: TrainConfig, is_restart: bool
) -> list[Devices]:
    """Ask all hosts at the same time what they have; return what of them the run uses.

    It also finds out where their workers meet. When a run starts again, hosts that cannot be
    reached are left out, as long as `--min-hosts` are left.

    Raises:
        UserError: something is missing; the message names all that is missing on any host.
    """
    agent, folder = config.agent, str(found.folder)
    classes = tuple(sorted(map(str, found.modules(agent.classes).values())))
    asked = AskInventory(folder, agent.packages, classes=classes)
    own = host_inventory(asked)
    with _token(config) as token:
        asked = replace(asked, token=token.name)
        answers = connections.ask(dict.fromkeys(connections, asked), INVENTORY_SECONDS)
    facts = {host: answer for host, answer in answers.items() if isinstance(answer, HostInventory)}
    problems = {host: [a.error] for host, a in answers.items() if isinstance(a, Answer)}
    if is_restart and config.min_hosts is not None and len(facts) >= config.min_hosts:
        for host, (why,) in problems.items():
            print_line(f"continuing without {host}: {why}")
        connections.leave_out(problems)
        problems = {}
    if is_restart:
        refuse_hosts(problems, _AwayError)
    hosts: list[Devices] = []
    known: dict[str, HostConnection] = {}
    first = next(iter(connections))
    for host, seen in facts.items():
        problems[host] = list(_differences(seen, own, found))
        if (same := known.setdefault(seen.identity, host)) is not host:
            problems[host].append(f"it is the same host as {same}")
        if host is first and not seen.has_token:
            problems[host].append(
                f"it does not share the folder {config.log_root}, where rank 0 writes the run: "
                "name this host first, or have --log-root on a file system that both have"
            )
        environ = {} if seen.visible is None else {VISIBLE: seen.visible}
        try:
            devices = choose_devices(config, environ, seen.gpus)
            hosts.append(replace(devices, host=host.name, cores=seen.cores))
        except UserError as error:
            problems[host].append(str(error).rstrip("."))
    refuse_hosts(problems)
    connections.meeting = find_meeting_address(connections, facts, config)
    return hosts


def find_meeting_address(
    connections: HostConnections,
    facts: Mapping[HostConnection, HostInventory],
    config: LaunchConfig,
) -> tuple[str, int]:
    """Return an address of the first host that all others reach, and the port it listens at there.

    Raises:
        UserError: the first host cannot listen there, or another one cannot connect.
    """
    first, *others = connections
    address, source = "127.0.0.1", "this host's own"
    if wanted := config.launcher_address:
        source, address = f"--launcher-address {wanted}", resolve(wanted) or ""
    elif not first.is_here:
        address, source = facts[first].address, f"the address by which ssh reaches {first}"
    elif others:
        address = facts[others[0]].launcher_address
        source = f"the address by which {others[0]} knows this host"
    if not address:
        raise UserError(f"{source} is not known: set --launcher-address to an address of {first}.")
    if others and ipaddress.ip_address(address).is_loopback:
        known = [f"{facts[host].launcher_address} by {host}" for host in others if not host.is_here]
        seen_as = f"; this host is seen as {', '.join(known)}" if known else ""
        raise UserError(
            f"{source} is {address}, a loopback address: other hosts cannot reach {first} there. "
            "Debian's /etc/hosts gives a host's own name such an address. "
            f"Set --launcher-address to one that they can reach{seen_as}."
        )
    answer = connections.ask({first: Meet(address)}, CONNECT_SECONDS)[first]
    assert isinstance(answer, Answer)
    if answer.port is None:
        raise UserError(
            f"{first} cannot listen on {address} ({answer.error}), which is {source}. "
            "Set --launcher-address to an address of it that the others reach."
        )
    place = f"{first} at {address}, port {answer.port}"
    advice = "open the network between them, or name another address by --launcher-address"
    meet = dict.fromkeys(others, Meet(address, answer.port))
    refuse_hosts(
        {
            host: [f"it cannot reach {place}: {met.error}; {advice}"]
            for host, met in connections.ask(meet, 2 * CONNECT_SECONDS).items()
            if isinstance(met, Answer) and met.error
        }
    )
    return address, answer.port


def _token(config: LaunchConfig) -> IO[bytes]:
    """Make a file, for a moment, that only a host sees that shares the log root's folder."""
    root = Path(config.log_root).absolute()
    folder = next(path for path in (root, *root.parents) if path.is_dir())
    try:
        return tempfile.NamedTemporaryFile(dir=folder, prefix=".mjfleet-")
    except OSError as error:
        raise UserError(f"--log-root {config.log_root}: {error.strerror}.") from None


def _differences(seen: HostInventory, own: HostInventory, found: FoundTask) -> Iterator[str]:
    for name, version in own.versions.items():
        if (other := seen.versions[name]) != version:
            text = f"{name} is missing there" if other == "missing" else f"it has {name} {other}"
            yield f"{text} (here: {version})"
    if files := _differing(seen.code, own.code):
        yield f"its mjfleet differs from this host's in {files}: install the same on both"
    if not seen.task:
        yield f"it has no task folder {found.folder}: copy it there"
    elif files := _differing(seen.task, own.task):
        yield f"its task folder {found.folder} differs from this host's in {files}: copy it again"
    if files := _differing(seen.classes, own.classes):
        yield f"what trains differs from this host's in {files}: copy it again"


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    more = f" and {len(names) - NAMED_FILES} more" if len(names) > NAMED_FILES else ""
    return ", ".join(names[:NAMED_FILES]) + more
