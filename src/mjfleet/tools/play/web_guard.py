"""Serves the web viewer only to those who have its address with the token. Runs in `play`.

viser answers whoever can connect: other users, and any web page that the user's browser shows.
"""

import hmac
from typing import Any
from urllib.parse import parse_qs

import viser
from websockets.asyncio import server
from websockets.http11 import Request, Response


class GuardedServer(viser.ViserServer):
    """viser's server behind the guard; it never opens a tunnel to the internet."""

    def __init__(self, host: str, port: int, token: str) -> None:
        serve = server.serve

        def guarded_serve(*args: Any, process_request: Any, **options: Any) -> server.serve:
            def process(*request: Any) -> Response | None:
                return answer(token, *request) or process_request(*request)

            return serve(*args, process_request=process, **options)

        # viser lets nobody see requests. It looks for `serve` here while it is constructed.
        server.serve = guarded_serve  # pyright: ignore[reportAttributeAccessIssue]
        try:
            super().__init__(host, port, "mjfleet", verbose=False)
        finally:
            server.serve = serve

    def request_share_url(self, verbose: bool = True) -> None:
        """Do nothing: any page may send the message that asks for this."""


def answer(token: str, connection: server.ServerConnection, request: Request) -> Response | None:
    """Return the answer, or None if viser is to answer: a browser that knows the token.

    It sends the token in the address once, and from then on in a cookie. Browsers send cookies with
    the requests of pages on this machine's other ports, too, of which `Origin` tells. A page whose
    name was made to lead here (DNS rebinding) has no cookie.
    """
    headers, cookie = request.headers, f"mjfleet-{connection.local_address[1]}={token}"
    sent = "; ".join(headers.get_all("Cookie")).split("; ")
    has_cookie = any(_is_equal(text, cookie) for text in sent)
    given = parse_qs(request.path.partition("?")[2]).get("token", [""])[0]
    pages = [origin.partition("://")[2] for origin in headers.get_all("Origin")]
    is_own_page = pages in ([], headers.get_all("Host"))
    if not is_own_page or not (has_cookie or _is_equal(given, token)):
        return connection.respond(403, "Open the address that `play` has printed.\n")
    if has_cookie or "Upgrade" in headers:
        return None
    redirect = connection.respond(303, "")
    cookie += "; Path=/; HttpOnly; SameSite=Lax"
    redirect.headers.update({"Location": "./", "Set-Cookie": cookie})
    return redirect


def _is_equal(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode(errors="replace"), secret.encode())
