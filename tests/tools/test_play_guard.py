"""Who sees the page of `play --viewer web`: only those who have its address with the token."""

import http.client
import socket
from collections.abc import Iterator

import pytest
import rich
import viser
from viser import _messages
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from mjfleet.tools.play.web_guard import GuardedServer

from ..conftest import PATIENCE

TOKEN = "tOkEn"


@pytest.fixture(scope="module")
def server() -> Iterator[GuardedServer]:
    rich.get_console().quiet = True
    made = GuardedServer("localhost", 0, TOKEN)
    yield made
    made.stop()


def get(
    server: GuardedServer, path: str = "/", **headers: str
) -> tuple[int, http.client.HTTPMessage]:
    """Ask for a page; returns the status and the headers of the answer."""
    connection = http.client.HTTPConnection("localhost", server.get_port(), timeout=PATIENCE)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert (b"<html" in answer.read()) == (answer.status == 200)
        return answer.status, answer.headers
    finally:
        connection.close()


def test_the_address_with_the_token_opens_the_page_and_others_do_not(server: GuardedServer) -> None:
    status, headers = get(server, f"/?token={TOKEN}")
    assert (status, headers["Location"]) == (303, "./")
    cookie, *attributes = headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Lax"} <= set(attributes)
    assert get(server, Cookie=cookie)[0] == 200
    assert get(server, Cookie=f"other=1; {cookie}")[0] == 200
    assert get(server)[0] == 403
    assert get(server, "/?token=other")[0] == 403
    assert get(server, "/?token=%ff%00")[0] == 403
    assert get(server, Cookie=f"{cookie}x")[0] == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:8080"}, 303),
        ({"Host": "[::1]:8080"}, 303),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "["}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 303),
        ({"Host": "localhost:1", "Origin": "http://localhost:2"}, 403),
        ({"Host": "localhost:1", "Origin": "http://evil.example"}, 403),
        ({"Host": "localhost:1", "Origin": "null"}, 403),
    ],
)
def test_other_names_and_other_pages_are_refused(
    server: GuardedServer, headers: dict[str, str], status: int
) -> None:
    assert get(server, f"/?token={TOKEN}", **headers)[0] == status


def test_messages_need_the_token_and_come_from_no_other_page(server: GuardedServer) -> None:
    address = f"ws://localhost:{server.get_port()}/"
    version = [Subprotocol(f"viser-v{viser.__version__}")]
    for path, origin in (
        ("", None),
        (f"?token={TOKEN}", Origin("http://evil.example")),
        ("?token=other", Origin(f"http://localhost:{server.get_port()}")),
    ):
        with pytest.raises(InvalidStatus) as refused:
            connect(address + path, origin=origin, subprotocols=version)
        assert refused.value.response.status_code == 403
    with connect(f"{address}?token={TOKEN}", subprotocols=version) as page:
        assert page.recv(timeout=PATIENCE)


def test_no_message_opens_a_tunnel(server: GuardedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*arguments: object) -> None:
        raise AssertionError(f"connects to {arguments}")

    monkeypatch.setattr("viser._viser.ViserTunnel", connect)
    # What the message leads to.
    assert server.request_share_url() is None
    assert _messages.ShareUrlRequest


ADDRESS = f"GET /?token={TOKEN} HTTP/1.1\r\n"


@pytest.mark.parametrize(
    "request_",
    [
        "\r\n\r\n",
        f"{ADDRESS}\r\n",
        f"{ADDRESS}Host: localhost\r\nHost: evil.example\r\n\r\n",
        f"{ADDRESS}Host: localhost\r\nOrigin: http://[\r\n\r\n",
        f"{ADDRESS}Host: localhost\r\nOrigin: http://localhost\r\nOrigin: null\r\n\r\n",
        ADDRESS.replace("GET", "POST") + "Host: localhost\r\n\r\n",
    ],
)
def test_what_no_browser_sends_is_refused(server: GuardedServer, request_: str) -> None:
    with socket.create_connection(("localhost", server.get_port()), timeout=PATIENCE) as stranger:
        stranger.sendall(request_.encode())
        assert stranger.recv(4096)[:13] in (b"", b"HTTP/1.1 403 ")
