"""A store at which only ranks that know the secret of the run can meet. Runs in the workers.

torch's TCPStore serves whoever connects. This one serves a peer once both have shown, by the
challenges of `multiprocessing.connection`, that they know the secret, which is never sent.
"""

import json
import os
import socket
import struct
import threading
from contextlib import suppress
from datetime import timedelta
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from torch.distributed import (
    DistNetworkError,
    DistStoreError,
    HashStore,  # pyright: ignore[reportPrivateImportUsage]
    Store,  # pyright: ignore[reportPrivateImportUsage]
)

from mjfleet.errors import WorkerError
from mjfleet.utils.wait_until import wait_until

CALLS = ("set", "get", "add", "check", "delete_key", "num_keys")
PATIENCE_SECONDS = 10.0  # For the answer to a challenge.
CONNECT_SECONDS = 5.0  # For an attempt to connect.
LOOK_SECONDS = 0.02


def serve_store(listener: socket.socket, secret: str) -> Store:
    """Return a store that this process serves to peers that know the secret, until it ends."""
    store = HashStore()

    def accept() -> None:
        while True:
            peer, _ = listener.accept()
            threading.Thread(target=_serve, args=(store, peer, secret), daemon=True).start()

    threading.Thread(target=accept, name="store", daemon=True).start()
    return store


def _serve(store: Store, peer: socket.socket, secret: str) -> None:
    """Answer one peer's calls until it disconnects, if it knows the secret."""
    with (
        suppress(OSError, EOFError, AuthenticationError),
        peer,
        Connection(os.dup(peer.fileno())) as connection,
    ):
        _set_patience(peer, PATIENCE_SECONDS)
        deliver_challenge(connection, secret.encode())
        answer_challenge(connection, secret.encode())
        _set_patience(peer, 0.0)
        while True:
            name, *arguments = json.loads(connection.recv_bytes())
            if name not in CALLS:
                return
            if name == "set":
                arguments[1] = arguments[1].encode("latin-1")
            answer = getattr(store, name)(*arguments)
            text = answer.decode("latin-1") if isinstance(answer, bytes) else answer
            connection.send_bytes(json.dumps(text).encode())


def _set_patience(peer: socket.socket, seconds: float) -> None:
    """Let reading fail after so many seconds; 0: never."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), 0))


def _connect(address: str, port: int, secret: str) -> Connection:
    """Connect to who serves the store there, once both have shown that they know the secret."""
    with socket.create_connection((address, port), CONNECT_SECONDS) as peer:
        peer.settimeout(None)
        _set_patience(peer, PATIENCE_SECONDS)
        connection = Connection(os.dup(peer.fileno()))
        answer_challenge(connection, secret.encode())
        deliver_challenge(connection, secret.encode())
        _set_patience(peer, 0.0)
    return connection


class SecretStore(Store):
    """The store that another rank serves. The methods are those that torch's backends call.

    Keep it for as long as the process group: torch does not.

    Raises:
        DistNetworkError: that rank has ended, or does not listen within `timeout`.
        WorkerError: what listens there does not know the secret.
    """

    def __init__(self, address: str, port: int, secret: str, timeout: timedelta) -> None:
        super().__init__()
        self._lock = threading.Lock()
        where = f"{address}, port {port}"
        connected: list[Connection] = []

        def is_connected() -> bool:
            # Until rank 0 serves, nobody answers there.
            with suppress(OSError, EOFError):
                connected.append(_connect(address, port, secret))
            return bool(connected)

        try:
            if not wait_until(is_connected, timeout.total_seconds()):
                raise DistNetworkError(f"no rank 0 at {where} within {timeout}")
        except AuthenticationError as error:
            raise WorkerError(f"{where}: not rank 0 of this run ({error!r})") from None
        self._connection = connected[0]

    def _call(self, name: str, *arguments: object) -> Any:
        try:
            with self._lock:
                self._connection.send_bytes(json.dumps([name, *arguments]).encode())
                return json.loads(self._connection.recv_bytes())
        except (OSError, EOFError) as error:
            raise DistNetworkError(f"the store of rank 0 is gone: {error!r}") from None

    def set(self, key: str, value: str | bytes) -> None:
        data = value if isinstance(value, bytes) else value.encode()
        self._call("set", key, data.decode("latin-1"))

    def get(self, key: str) -> bytes:
        """Return a value, once there is one."""
        self.wait([key])
        return self._call("get", key).encode("latin-1")

    def add(self, key: str, value: int) -> int:
        return self._call("add", key, value)

    def check(self, keys: list[str]) -> bool:
        return self._call("check", keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until there are values for all keys; a DistStoreError if that takes too long."""
        timeout = timeout or self.timeout  # pyright: ignore[reportAttributeAccessIssue]
        if not wait_until(lambda: self.check(keys), timeout.total_seconds(), LOOK_SECONDS):
            raise DistStoreError(f"not set within {timeout}: {', '.join(keys)}")

    def delete_key(self, key: str) -> bool:
        return self._call("delete_key", key)

    def num_keys(self) -> int:
        return self._call("num_keys")

    def clone(self) -> Store:
        return self

    # torch's C++ calls these two by other names.
    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815
