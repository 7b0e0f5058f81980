"""Opens a page in a browser, as a person would."""

import subprocess
from pathlib import Path

POINTING = """<script>
along.value = "minutes"; along.onchange();
requestAnimationFrame(() => {
  const over = document.querySelector(".u-over"), box = over.getBoundingClientRect();
  const at = {clientX: box.left + box.width / 2, clientY: box.top + 9, bubbles: true};
  over.dispatchEvent(new MouseEvent("mouseenter", at));
  over.dispatchEvent(new MouseEvent("mousemove", at));
});
</script>"""
"""Chooses minutes for the x-axis, then points at a curve."""


def document_after_pointing(text: str, folder: Path) -> str:
    """Return a page as it is after POINTING. There is no error, and no request that it forbids."""
    watched = folder / "watched.html"
    watched.write_text(text.replace("</body>", f"{POINTING}</body>"))
    browser = subprocess.run(
        ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",
         f"--user-data-dir={folder / 'browser'}", "--enable-logging=stderr", "--v=0",
         "--virtual-time-budget=2000", "--dump-dom", watched.as_uri()],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "CONSOLE" not in browser.stderr, browser.stderr
    return browser.stdout
