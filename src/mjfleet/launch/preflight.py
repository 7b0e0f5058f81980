"""What must hold on all hosts of a run before anything is started on one. In the launcher."""

import ipaddress
import socket
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mjfleet.config import LaunchConfig, TrainConfig
from mjfleet.errors import UserError
from mjfleet.launch.devices import VISIBLE, choose_devices, needs_gpus
from mjfleet.launch.host_agent import CONNECT_SECONDS, Facts, see
from mjfleet.launch.host_messages import Message
from mjfleet.launch.host_starter import HostConnection, HostConnections
from mjfleet.launch.launch_plan import Host
from mjfleet.registry import FoundTask
from mjfleet.utils.console import print_line
from mjfleet.worker.stop_signals import StopRequest

LOOPBACK = "127.0.0.1"
SEE_SECONDS = 30.0
"""How long a host may take to be connected and to say what it has."""
AWAY_SECONDS = 600.0
"""How long hosts that a run needs to start again may be away."""
AGAIN_SECONDS = 5.0
"""Between two looks whether they are back."""
NAMED = 3
"""How many files a message names."""


class _AwayError(UserError):
    """Some hosts cannot be reached."""


@contextmanager
def reach(
    names: Sequence[str], found: FoundTask, config: TrainConfig, is_restart: bool
) -> Iterator[tuple[HostConnections, list[Host]]]:
    """Connections to all hosts for the length of the block, and what of them the run uses.

    When a run starts again, hosts that cannot be reached and are needed have AWAY_SECONDS to come
    back: a host that boots anew takes minutes.

    Raises:
        UserError: see preflight.
    """
    deadline: float | None = None
    while True:
        with HostConnections(names, config) as connections:
            try:
                with StopRequest().installed():
                    hosts = preflight(connections, found, config, is_restart)
            except _AwayError as error:
                if deadline is None:
                    print_line(f"{error}\nThey have {AWAY_SECONDS:g} s to come back.")
                    deadline = time.monotonic() + AWAY_SECONDS
                elif time.monotonic() > deadline:
                    raise
            else:
                yield connections, hosts
                return
        with StopRequest().installed():
            time.sleep(AGAIN_SECONDS)


def preflight(
    connections: HostConnections, found: FoundTask, config: TrainConfig, is_restart: bool
) -> list[Host]:
    """Ask all hosts at the same time what they have; returns what of them the run uses.

    It also finds out where their workers meet.

    When a run starts again, hosts that cannot be reached are left out, as long as enough are left.

    Raises:
        UserError: something is missing; all that is missing on any host is told.
    """
    asked = list(connections)
    with _token(config) as token:
        question = {
            "task_folder": str(found.folder),
            "token": token,
            "counts_gpus": needs_gpus(config),
            "packages": config.agent.packages,
        }
        answers = _ask(connections, asked, {"see": question}, SEE_SECONDS)
        here = see(str(found.folder), token, False, config.agent.packages)
    facts = {post: Facts(**a["facts"]) for post, a in answers.items() if "facts" in a}
    lost = {post: answers[post]["error"] for post in asked if post not in facts}
    if is_restart and config.min_hosts is not None and len(facts) >= config.min_hosts:
        for post, why in lost.items():
            print_line(f"goes on without {post}: {why}")
        connections.leave_out(lost)
        lost = {}
    problems = {post: [why] for post, why in lost.items()}
    if is_restart:
        _refuse(problems, _AwayError)
    hosts = []
    known: dict[str, HostConnection] = {}
    for post, seen in facts.items():
        environ = {} if seen.visible is None else {VISIBLE: seen.visible}
        problems[post] = list(_differences(seen, here, found))
        if (same := known.setdefault(seen.identity, post)) is not post:
            problems[post].append(f"it is the same host as {same}")
        if post is next(iter(connections)) and not seen.has_token:
            problems[post].append(
                f"it does not share the folder {config.log_root}, where rank 0 writes the run: "
                "name this host first, or have --log-root on a file system that both have"
            )
        try:
            devices = choose_devices(config, environ, seen.gpus)
            hosts.append(Host(name=post.name, devices=devices, cores=seen.cores))
        except UserError as error:
            problems[post].append(str(error).rstrip("."))
    _refuse(problems)
    connections.meeting = _meet(connections, facts, config)
    return hosts


@contextmanager
def _token(config: LaunchConfig) -> Iterator[str]:
    """A file for a moment, where the log root is or would be made: who sees it shares that."""
    root = Path(config.log_root).absolute()
    folder = next(path for path in (root, *root.parents) if path.is_dir())
    with ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.NamedTemporaryFile(dir=folder, prefix=".mjfleet-"))
        except OSError as error:
            raise UserError(f"--log-root {config.log_root}: {error.strerror}.") from None
        yield file.name


def _differences(seen: Facts, here: Facts, found: FoundTask) -> Iterable[str]:
    """What a host has otherwise than this one, in words."""
    for name, version in here.versions.items():
        if seen.versions[name] != version:
            yield f"it has {name} {seen.versions[name]}, this host {version}"
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


def _meet(
    connections: HostConnections, facts: Mapping[HostConnection, Facts], config: LaunchConfig
) -> tuple[str, int]:
    """Find the address by which all others reach the first host, and a free port there."""
    first, *others = connections
    address, source = _address(first, others, facts, config)
    if others and ipaddress.ip_address(address).is_loopback:
        raise UserError(
            f"{source} is {address}, which is each host's own: others cannot reach {first} by it. "
            "Debian's /etc/hosts gives a host's own name such an address. "
            f"--launcher-address names one that they can reach{_seen(others, facts)}."
        )
    answer = _ask(connections, [first], {"listen": address}, CONNECT_SECONDS)[first]
    if "error" in answer:
        raise UserError(
            f"{first} cannot listen on {address} ({answer['error']}), which is {source}. "
            "--launcher-address names an address of it that the others reach."
        )
    port: int = answer["port"]
    request = {"connect": [address, port]}
    answers = _ask(connections, others, request, 2 * CONNECT_SECONDS)
    _refuse(
        {
            post: [
                f"it cannot reach {first} at {address}, port {port}: {answer['error']}; "
                "open the network between them, or name another address by --launcher-address"
            ]
            for post, answer in answers.items()
            if "error" in answer
        }
    )
    return address, port


def _address(
    first: HostConnection,
    others: list[HostConnection],
    facts: Mapping[HostConnection, Facts],
    config: LaunchConfig,
) -> tuple[str, str]:
    """An address of the first host, and what it is."""
    if name := config.launcher_address:
        try:
            return str(socket.getaddrinfo(name, None)[0][4][0]), f"--launcher-address {name}"
        except OSError as error:
            raise UserError(f"--launcher-address {name}: {error.strerror}.") from None
    if first.is_here and not others:
        return LOOPBACK, "this host's own"
    if not first.is_here:
        return facts[first].address, f"the address by which ssh reaches {first}"
    return facts[others[0]].launcher_address, f"the address by which {others[0]} knows this host"


def _seen(others: list[HostConnection], facts: Mapping[HostConnection, Facts]) -> str:
    known = [f"{facts[post].launcher_address} by {post}" for post in others if not post.is_here]
    return f"; this host is seen as {', '.join(known)}" if known else ""


def _ask(
    connections: HostConnections,
    asked: Collection[HostConnection],
    request: Message,
    seconds: float,
) -> dict[HostConnection, Message]:
    """Ask several hosts at the same time; returns each one's answer, which may be an `error`."""
    for post in asked:
        post.send(request)
    deadline = time.monotonic() + seconds
    answers: dict[HostConnection, Message] = {}
    while set(asked) - answers.keys():
        if (received := connections.receive(deadline - time.monotonic())) is None:
            break
        post, message = received
        answers[post] = {"error": post.report()} if message is None else message
    missing = {"error": f"no answer within {seconds:g} s"}
    return {post: answers.get(post, missing) for post in asked}


def _refuse(
    problems: Mapping[HostConnection, list[str]], kind: type[UserError] = UserError
) -> None:
    """Raise an error where there are any."""
    found = {post: whys for post, whys in problems.items() if whys}
    if found:
        lines = "".join(f"\n  {post}: {why}" for post, whys in found.items() for why in whys)
        raise kind(f"nothing was started, {len(found)} of the hosts cannot take part:{lines}")
