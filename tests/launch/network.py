"""Two hosts on one machine: namespaces with a name, an address, an /etc/hosts and an sshd each."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..conftest import PATIENCE

ADDRESSES = {"node1": "10.77.0.1", "node2": "10.77.0.2"}
TOOLS = ("unshare", "nsenter", "ip", "ssh", "ssh-keygen", "/usr/sbin/sshd")

SSHD = """
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv TMPDIR={temporary}
"""
SSH = """
Host *
    IdentityFile {folder}/key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
"""


class Network:
    """Hosts node1 and node2, which share the file system and are connected by one cable."""

    def __init__(self, folder: Path) -> None:
        """Make the keys, the hosts and the cable, and start both sshd."""
        self.ssh_config = folder / "ssh_config"
        self.known_hosts = folder / "known_hosts"
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._keys()
        self._hosts = {name: self._unshare(name) for name in ADDRESSES}
        one, two = (process.pid for process in self._hosts.values())
        _run("ip", "link", "add", "eth0", "netns", str(one), "type", "veth",
             "peer", "name", "eth0", "netns", str(two))  # fmt: skip
        for name, address in ADDRESSES.items():
            self.run(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            self.run(name, "ip", "link", "set", "eth0", "up")
            self._start_sshd(name, address)
            self._wait_for_sshd(name, name)

    def on(self, name: str, *command: str, folder: Path | None = None) -> list[str]:
        """A command that runs on a host, in a folder."""
        process = self._hosts[name]
        enter = ["nsenter", "--target", str(process.pid), "--net", "--uts", "--mount"]
        return [*enter, "env", f"--chdir={folder or '/'}", *command]

    def run(self, name: str, *command: str) -> None:
        """Run a command on a host."""
        _run(*self.on(name, *command))

    @contextmanager
    def cuttable(self, name: str) -> Iterator[Callable[[], None]]:
        """What pulls out a host's cable; with the block it is in again, and hosts meet."""
        try:
            yield lambda: self.run(name, "ip", "link", "set", "eth0", "down")
        finally:
            self.run(name, "ip", "link", "set", "eth0", "up")
            for other in ADDRESSES:
                self._wait_for_sshd(other, name)

    @contextmanager
    def mounted(self, name: str, others: Mapping[Path, Path]) -> Iterator[None]:
        """Show other files or folders on a host, in the place of some that it shares."""
        for place, other in others.items():
            self.run(name, "mount", "--bind", str(other), str(place))
        try:
            yield
        finally:
            for place in others:
                self.run(name, "umount", str(place))

    def close(self) -> None:
        """End what was started; the namespaces end with their last process."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _keys(self) -> None:
        for name in ("key", "host_key"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name))
        public = (self._folder / "host_key.pub").read_text()
        known = "".join(f"{name},{ADDRESSES[name]} {public}" for name in ADDRESSES)
        self.known_hosts.write_text(known)
        self.ssh_config.write_text(SSH.format(folder=self._folder))

    def _unshare(self, name: str) -> subprocess.Popen[bytes]:
        """A process whose namespaces are a host, once it says that they are made."""
        hosts = self._folder / f"hosts_{name}"
        # As Debian has it: a host's own name is its loopback address.
        others = [f"{address} {other}" for other, address in ADDRESSES.items() if other != name]
        hosts.write_text("\n".join(["127.0.0.1 localhost", f"127.0.1.1 {name}", *others, ""]))
        script = (
            f"hostname {name}; ip link set lo up; mount --bind {hosts} /etc/hosts; "
            "mount -t tmpfs none /run; mkdir /run/sshd; echo; exec sleep infinity"
        )
        unshare = ["unshare", "--net", "--uts", "--mount", "sh", "-ec", script]
        process = self._start(unshare)
        assert process.stdout
        assert process.stdout.readline() == b"\n"
        return process

    def _start_sshd(self, name: str, address: str) -> None:
        config = self._folder / f"sshd_{name}"
        config.write_text(
            SSHD.format(address=address, folder=self._folder, temporary=tempfile.gettempdir())
        )
        self._start(self.on(name, "/usr/sbin/sshd", "-D", "-e", "-f", str(config)))

    def _wait_for_sshd(self, name: str, server: str) -> None:
        """Wait until one host reaches another, or itself, by ssh."""
        deadline = time.monotonic() + PATIENCE
        command = self.on(name, "ssh", "-F", str(self.ssh_config), ADDRESSES[server], "true")
        while subprocess.run(command, check=False, capture_output=True).returncode:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """A process that ends with this one, however that happens."""
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._processes.append(process)
        return process


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
