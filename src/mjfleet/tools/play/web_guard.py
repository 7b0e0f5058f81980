"""Serves the web viewer only to those who have its address with the token. Runs in `play`.

viser answers whoever can connect: other users, and any web page that the user's browser shows.
"""

import hmac
import ipaddress
import socket
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import viser
from websockets.asyncio import server
from websockets.http11 import Request, Response


class GuardedServer(viser.ViserServer):
    """viser's server behind the guard; it never opens a tunnel to the internet."""

    def __init__(self, host: str, port: int, token: str) -> None:
        guard, serve = Guard(host, token), server.serve

        def guarded_serve(*args: Any, process_request: Any, **options: Any) -> server.serve:
            def process(*request: Any) -> Response | None:
                return guard.answer(*request) or process_request(*request)

            return serve(*args, process_request=process, **options)

        # viser lets nobody see requests. It looks for `serve` here while it is constructed.
        server.serve = guarded_serve  # pyright: ignore[reportAttributeAccessIssue]
        try:
            super().__init__(host, port, "mjfleet", verbose=False)
        finally:
            server.serve = serve

    def request_share_url(self, verbose: bool = True) -> None:
        """Do nothing: any page may send the message that asks for this."""


class Guard:
    """Lets only requests pass that have the token and come from pages of this server."""

    def __init__(self, host: str, token: str) -> None:
        self._token, self._names = token, {"localhost", host.lower()}
        if host != "localhost":
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def answer(self, connection: server.ServerConnection, request: Request) -> Response | None:
        """Return the answer, or None if viser is to answer.

        A browser sends the token in the address once, and from then on in a cookie.
        """
        cookie = f"mjfleet-{connection.local_address[1]}={self._token}"
        sent = "; ".join(request.headers.get_all("Cookie")).split("; ")
        has_cookie = any(_is_equal(text, cookie) for text in sent)
        token = parse_qs(request.path.partition("?")[2]).get("token", [""])[0]
        if not self._is_from_here(request) or not (has_cookie or _is_equal(token, self._token)):
            return connection.respond(403, "Open the address that `play` has printed.\n")
        if has_cookie or "Upgrade" in request.headers:
            return None
        answer = connection.respond(303, "")
        cookie += "; Path=/; HttpOnly; SameSite=Lax"
        answer.headers.update({"Location": "./", "Set-Cookie": cookie})
        return answer

    def _is_from_here(self, request: Request) -> bool:
        """Return whether this server was asked by its name, by no page of another server."""
        hosts, origins = (request.headers.get_all(name) for name in ("Host", "Origin"))
        with suppress(ValueError):
            (name,) = (urlsplit(f"//{host}").hostname or "" for host in hosts)
            # Another name may have been made to lead here (DNS rebinding); an address cannot.
            if name in self._names or ipaddress.ip_address(name):
                return [urlsplit(origin).netloc for origin in origins] in ([], hosts)
        return False


def _is_equal(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode(errors="replace"), secret.encode())
