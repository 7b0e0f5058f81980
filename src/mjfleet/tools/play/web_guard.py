"""Serves the web viewer only to those who have its address with the token. Runs in `play`.

viser answers whoever can connect: other users of the machine, and any web page that the user's
browser shows. Here the first lines of each connection are looked at before viser sees it.
"""

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, HTTPMessage, parse_headers
from http.cookies import CookieError, SimpleCookie
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, urlsplit

import viser

REQUEST_BYTES = 16384
REQUEST_SECONDS = 10.0  # For a request to arrive.
REFUSED = "Open the address that `play` has printed, with its token.\n"


class GuardedServer(viser.ViserServer):
    """viser's server behind the guard; it never opens a tunnel to the internet."""

    def __init__(self, host: str, port: int, token: str) -> None:
        # viser makes an event loop, in a thread, while it is constructed.
        before = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(_GuardingPolicy(Access(host, token)))
        try:
            super().__init__(host, port, "mjfleet", verbose=False)
        finally:
            asyncio.set_event_loop_policy(before)

    def request_share_url(self, verbose: bool = True) -> None:
        """Do nothing: any page may send the message that asks for this."""


class Access:
    """Who may see the page: those who know the token, from pages of this server alone."""

    def __init__(self, host: str, token: str) -> None:
        self._token = token
        self._names = {"localhost", host.lower()}
        if host != "localhost":
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def answer(self, path: str, headers: HTTPMessage, port: int) -> bytes | None:
        """Return the answer to a request; None: it may go on to viser.

        A browser shows the token once, in the address, and from then on in a cookie.
        """
        host, origin = headers.get("Host", ""), headers.get("Origin")
        # A name of somebody else's may have been made to lead here (DNS rebinding).
        if not self._is_ours(host) or (origin is not None and urlsplit(origin).netloc != host):
            return _response("403 Forbidden")
        name, cookies = f"mjfleet-{port}", SimpleCookie()
        with suppress(CookieError):
            cookies.load(headers.get("Cookie", ""))
        if name in cookies and self._is_token(cookies[name].value):
            return None
        if not self._is_token(*parse_qs(urlsplit(path).query).get("token", [""])[:1]):
            return _response("403 Forbidden")
        if headers.get("Upgrade") is not None:
            return None
        cookie = f"{name}={self._token}; Path=/; HttpOnly; SameSite=Lax"
        return _response("303 See Other", f"Location: ./\r\nSet-Cookie: {cookie}\r\n", "")

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name in self._names:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(errors="replace"), self._token.encode())


class Guard(asyncio.Protocol):
    """Reads the request that begins a connection; hands over to viser, or answers and closes."""

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol], access: Access) -> None:
        self._make_protocol, self._access = make_protocol, access
        self._request = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._request += data
        head, end, _ = bytes(self._request).partition(b"\r\n\r\n")
        if not end and len(self._request) < REQUEST_BYTES:
            return
        self._deadline.cancel()
        answer = self._answer(head) if end else _response("431 Request Header Fields Too Large")
        if answer:
            self._transport.write(answer)
            self._transport.close()
            return
        protocol = self._make_protocol()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(bytes(self._request))

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()

    def _answer(self, head: bytes) -> bytes | None:
        first, _, rest = head.partition(b"\r\n")
        try:
            _, path, _ = first.decode("ascii").split(" ")
            headers = parse_headers(BytesIO(rest + b"\r\n\r\n"))
            port: int = self._transport.get_extra_info("sockname")[1]
            return self._access.answer(path, headers, port)
        except (ValueError, HTTPException):
            return _response("400 Bad Request")


class _GuardingPolicy(asyncio.DefaultEventLoopPolicy):
    """Makes event loops whose servers are guarded."""

    def __init__(self, access: Access) -> None:
        super().__init__()
        self._access = access

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _GuardedLoop(self._access)


class _GuardedLoop(asyncio.SelectorEventLoop):
    def __init__(self, access: Access) -> None:
        super().__init__()
        self._access = access

    async def create_server(self, protocol_factory: Any, *args: Any, **options: Any) -> Any:
        def guard() -> Guard:
            return Guard(protocol_factory, self._access)

        return await super().create_server(guard, *args, **options)


def _response(status: str, headers: str = "", body: str = REFUSED) -> bytes:
    fields = f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n{headers}"
    return f"HTTP/1.1 {status}\r\n{fields}Connection: close\r\n\r\n{body}".encode()
