"""Finds the address at which the workers of several hosts meet. Runs in the launcher."""

import ipaddress
import socket
from collections.abc import Mapping

from mjfleet.config import LaunchConfig
from mjfleet.errors import UserError
from mjfleet.launch.hosts.host_agent import CONNECT_SECONDS
from mjfleet.launch.hosts.host_channel import Answer, Meet
from mjfleet.launch.hosts.host_inventory import HostInventory
from mjfleet.launch.hosts.host_starter import HostConnection, HostConnections, refuse_hosts


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
        source = f"--launcher-address {wanted}"
        try:
            address = str(socket.getaddrinfo(wanted, None)[0][4][0])
        except OSError as error:
            raise UserError(f"{source}: {error.strerror}.") from None
    elif not first.is_here:
        address, source = facts[first].address, f"the address by which ssh reaches {first}"
    elif others:
        address = facts[others[0]].launcher_address
        source = f"the address by which {others[0]} knows this host"
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
