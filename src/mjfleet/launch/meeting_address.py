"""Finds the address and the port where the workers of several hosts meet. Runs in the launcher."""

import ipaddress
import socket
from collections.abc import Mapping

from mjfleet.config import LaunchConfig
from mjfleet.errors import UserError
from mjfleet.launch.host_agent import CONNECT_SECONDS
from mjfleet.launch.host_facts import HostFacts
from mjfleet.launch.host_messages import Answer, Meet
from mjfleet.launch.host_starter import HostConnection, HostConnections, refuse


def find_meeting(
    connections: HostConnections, facts: Mapping[HostConnection, HostFacts], config: LaunchConfig
) -> tuple[str, int]:
    """Return an address of the first host that all others reach, and the port it listens at there.

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
    answer = connections.ask({first: Meet(address)}, CONNECT_SECONDS)[first]
    assert isinstance(answer, Answer)
    if answer.port is None:
        raise UserError(
            f"{first} cannot listen on {address} ({answer.error}), which is {source}. "
            "Set --launcher-address to an address of it that the others reach."
        )
    port = answer.port
    answers = connections.ask(dict.fromkeys(others, Meet(address, port)), 2 * CONNECT_SECONDS)
    advice = "open the network between them, or name another address by --launcher-address"
    refuse(
        {
            host: [f"it cannot reach {first} at {address}, port {port}: {answer.error}; {advice}"]
            for host, answer in answers.items()
            if isinstance(answer, Answer) and answer.error
        }
    )
    return address, port


def _address(
    first: HostConnection,
    others: list[HostConnection],
    facts: Mapping[HostConnection, HostFacts],
    wanted: str | None,
) -> tuple[str, str]:
    """Return an address of the first host, and what it is, for a message."""
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
