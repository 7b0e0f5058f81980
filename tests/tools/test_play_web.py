"""The page of `play --viewer web` in a real browser: what somebody moves there moves the robots."""

import secrets
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .browser import browse, until
from .test_play_realtime import play
from .test_play_viewers import ClosedError

MIDDLE = "e => (box => [box.x + box.width / 2, box.y + box.height / 2])(e.getBoundingClientRect())"

SMALL = "--window-size=700,1000"
"""A window with few pixels: without a GPU, they take all processors while the page is open."""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_what_somebody_moves_on_the_page_moves_the_robots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mjfleet.tools.play.web_viewer import show_in_browser  # Collecting tests does without.

    monkeypatch.setattr(secrets, "token_urlsafe", lambda length: "ours")
    for name in ("model_1.pt", "model_2.pt"):
        (tmp_path / name).write_text("weights")
    playback, actor = play(tmp_path, command={"seconds": (1000.0, 1000.0)})
    env, playback.speed = playback.env, 1 / 8  # Fewer pictures to draw.
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]

    def look() -> None:
        with browse(f"http://localhost:{port}/?token=ours", tmp_path, SMALL) as page:
            by_hand = ("By hand", "[type=checkbox]")
            until(lambda: page.value('document.body?.innerText.includes("By hand")'))
            assert not page.of(*by_hand, "control.checked")
            # A person presses on the track, three quarters of the way to its end.
            assert not env.command_override
            slider = ("forward", "[role=slider]")
            track = 'control.closest(".mantine-Slider-root").getBoundingClientRect()'
            place = f"(box => [box.x, box.width, box.y + 6])({track})"

            _, low, high = env.commands()["forward"]
            wanted = pytest.approx(low + 0.75 * (high - low), abs=0.1 * (high - low))

            def press() -> bool:
                left, width, y = page.of(*slider, place)
                page.click(left + 0.75 * width, y)
                time.sleep(0.5)
                values, _, _ = env.commands()["forward"]
                return env.command_override and values.tolist() == [wanted, wanted]

            until(press)  # Again, if the page was still moving what it shows.
            until(lambda: page.of(*by_hand, "control.checked"))
            until(lambda: float(page.of(*slider, "control.ariaValueNow")) == wanted)
            # The task draws commands again once that is no longer ticked.
            page.of(*by_hand, "control.click()")
            until(lambda: not env.command_override)

            for is_paused in (True, False):
                page.value(f"{found('button', 'Pause, resume')}.click()")
                until(lambda wanted=is_paused: playback.is_paused == wanted)
            # A checkpoint that is chosen is played.
            assert page.of("Policy", "input", "control.value") == "newest"
            page.click(*page.of("Policy", "input", f"({MIDDLE})(control)"))
            option = found("[role=option]", "model_1.pt")
            until(lambda: page.value(f"!!{option}"))
            page.click(*page.value(f"({MIDDLE})({option})"))
            until(lambda: actor.loaded[-1:] == ["model_1.pt"] and "model_1.pt" in page.text())
            # Each reward term has a line; what the robot does stands beside the commands.
            assert all(name in page.text() for name in env.reward_names)
            assert page.text().index("robot") < page.text().index("Rewards")

    def close() -> None:
        raise ClosedError

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        looking.add_done_callback(lambda _: playback.later(close))
        with pytest.raises(ClosedError):
            show_in_browser(playback, "localhost", port)
        looking.result()


def found(selector: str, text: str) -> str:
    """An expression for the element with a text."""
    return f"[...document.querySelectorAll('{selector}')].find(e => e.innerText === '{text}')"
