"""Checks that the hosts of a run fit together and reach each other, before anything starts.

Runs in the launcher.
"""

import ipaddress
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO

from mjfleet.config import LaunchConfig, TrainConfig
from mjfleet.errors import UserError
from mjfleet.launch.devices import VISIBLE, Host, choose_devices, needs_gpus
from mjfleet.launch.host_agent import CONNECT_SECONDS
from mjfleet.launch.host_facts import HostFacts, host_facts
from mjfleet.launch.host_starter import HostConnection, HostConnections, refuse
from mjfleet.registry import FoundTask
from mjfleet.utils.console import print_line

FACTS_SECONDS = 30.0  # How long a host may take to be connected and to say what it has.
AWAY_SECONDS = 600.0  # How long hosts that a run needs to start again may be away.
AGAIN_SECONDS = 5.0  # Time between two attempts to reach them.
NAMED = 3  # How many files a message names.


class _AwayError(UserError):
    """Some hosts cannot be reached."""


@contextmanager
def reach_hosts(
    names: Sequence[str], found: FoundTask, config: TrainConfig, is_restart: bool
) -> Iterator[tuple[HostConnections, list[Host]]]:
    """Connect to all hosts for the length of the block; yield what of them the run uses, too.

    When a run starts again, hosts that cannot be reached and are needed have AWAY_SECONDS to come
    back: a host that boots takes minutes.

    Raises:
        UserError: see `preflight`.
    """
    deadline = time.monotonic() + AWAY_SECONDS
    for attempt in count():
        with HostConnections(names, config) as connections:
            try:
                hosts = preflight(connections, found, config, is_restart)
            except _AwayError as error:
                if time.monotonic() > deadline:
                    raise
                if attempt == 0:
                    print_line(f"{error}\nThey have {AWAY_SECONDS:g} s to come back.")
            else:
                yield connections, hosts
                return
        time.sleep(AGAIN_SECONDS)


def preflight(
    connections: HostConnections, found: FoundTask, config: TrainConfig, is_restart: bool
) -> list[Host]:
    """Ask all hosts at the same time what they have; return what of them the run uses.

    It also finds out where their workers meet. When a run starts again, hosts that cannot be
    reached are left out, as long as `--min-hosts` are left.

    Raises:
        UserError: something is missing; the message names all that is missing on any host.
    """
    with _token(config) as token:
        folder, packages = str(found.folder), config.agent.packages
        question = {"task_folder": folder, "token": token.name, "packages": packages}
        question["counts_gpus"] = needs_gpus(config)
        questions = {
            host: {"facts": question | {"is_over_ssh": not host.is_here}} for host in connections
        }
        answers = connections.ask(questions, FACTS_SECONDS)
    here = host_facts(folder, "", packages)
    facts = {host: HostFacts(**a["facts"]) for host, a in answers.items() if "facts" in a}
    problems = {host: [a["error"]] for host, a in answers.items() if host not in facts}
    if is_restart and config.min_hosts is not None and len(facts) >= config.min_hosts:
        for host, (why,) in problems.items():
            print_line(f"goes on without {host}: {why}")
        connections.leave_out(problems)
        problems = {}
    if is_restart:
        refuse(problems, _AwayError)
    hosts = []
    known: dict[str, HostConnection] = {}
    first = next(iter(connections))
    for host, seen in facts.items():
        problems[host] = list(_differences(seen, here, found))
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
            hosts.append(Host(name=host.name, devices=devices, cores=seen.cores))
        except UserError as error:
            problems[host].append(str(error).rstrip("."))
    refuse(problems)
    connections.meeting = find_rendezvous(connections, facts, config)
    return hosts


def find_rendezvous(
    connections: HostConnections, facts: Mapping[HostConnection, HostFacts], config: LaunchConfig
) -> tuple[str, int]:
    """Find an address of the first host that all others reach, and a free port there.

    Raises:
        UserError: the first host cannot listen there, or another one cannot connect.
    """
    first, *others = connections
    address, source = _address(first, others, facts, config.launcher_address)
    if others and ipaddress.ip_address(address).is_loopback:
        known = [f"{facts[host].launcher_address} by {host}" for host in others if not host.is_here]
        seen_as = f"; this host is seen as {', '.join(known)}" if known else ""
        raise UserError(
            f"{source} is {address}, a loopback address: other hosts cannot reach {first} there. "
            "Debian's /etc/hosts gives a host's own name such an address. "
            f"Set --launcher-address to one that they can reach{seen_as}."
        )
    answer = connections.ask({first: {"listen": address}}, CONNECT_SECONDS)[first]
    if "error" in answer:
        raise UserError(
            f"{first} cannot listen on {address} ({answer['error']}), which is {source}. "
            "Set --launcher-address to an address of it that the others reach."
        )
    port: int = answer["port"]
    question = {"connect": [address, port]}
    answers = connections.ask(dict.fromkeys(others, question), 2 * CONNECT_SECONDS)
    advice = "open the network between them, or name another address by --launcher-address"
    refuse(
        {
            host: [f"it cannot reach {first} at {address}, port {port}: {why['error']}; {advice}"]
            for host, why in answers.items()
            if "error" in why
        }
    )
    return address, port


def _address(
    first: HostConnection,
    others: Sequence[HostConnection],
    facts: Mapping[HostConnection, HostFacts],
    wanted: str | None,
) -> tuple[str, str]:
    """Return an address of the first host, and what it is, in words."""
    if wanted:
        try:
            return str(socket.getaddrinfo(wanted, None)[0][4][0]), f"--launcher-address {wanted}"
        except OSError as error:
            raise UserError(f"--launcher-address {wanted}: {error.strerror}.") from None
    if not first.is_here:
        return facts[first].address, f"the address by which ssh reaches {first}"
    if not others:
        return "127.0.0.1", "this host's own"
    return facts[others[0]].launcher_address, f"the address by which {others[0]} knows this host"


def _token(config: LaunchConfig) -> IO[bytes]:
    """Make a file for a moment, at the log root or where that would be made.

    A host that sees the file shares the folder.
    """
    root = Path(config.log_root).absolute()
    folder = next(path for path in (root, *root.parents) if path.is_dir())
    try:
        return tempfile.NamedTemporaryFile(dir=folder, prefix=".mjfleet-")
    except OSError as error:
        raise UserError(f"--log-root {config.log_root}: {error.strerror}.") from None


def _differences(seen: HostFacts, here: HostFacts, found: FoundTask) -> Iterator[str]:
    """Yield in words what a host has that differs from this one."""
    for name, version in here.versions.items():
        if seen.versions[name] != version:
            there = seen.versions[name]
            has = f"{name} is missing there" if there == "missing" else f"it has {name} {there}"
            yield f"{has} (here: {version})"
    if files := _differing(seen.code, here.code):
        yield f"its mjfleet differs from this host's in {files}: install the same on both"
    if not seen.task:
        yield f"it has no task folder {found.folder}: copy it there"
    elif files := _differing(seen.task, here.task):
        yield f"its task folder {found.folder} differs from this host's in {files}: copy it anew"


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
