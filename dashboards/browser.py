"""Headless Chromium: what it makes of a page, and a picture of that."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

FIND = Path(__file__).resolve().parents[1] / "examples" / "setup" / "find-chromium"
FIND_LIMIT_SECONDS = 300
PAGE_LIMIT_SECONDS = 600
SETTLED_MILLIS = 1_000
"""In the page's own time, which does not wait."""


class MissingBrowserError(Exception):
    """There is none here, and why."""


class Browser:
    """Starts one for each page, which knows nothing of those before."""

    def __init__(self) -> None:
        found = subprocess.run([FIND], capture_output=True, text=True, timeout=FIND_LIMIT_SECONDS, check=False)
        if found.returncode != 0:
            raise MissingBrowserError(found.stderr.strip())
        self._command = found.stdout.strip()

    def text_of(self, url: str) -> str:
        """The page's elements after it was loaded."""
        return self._run("--dump-dom", url)

    def picture(self, url: str, width: int, height: int, to: Path) -> None:
        """As PNG, at one pixel a point."""
        self._run(f"--screenshot={to}", f"--window-size={width},{height}", "--hide-scrollbars", url)

    def _run(self, *arguments: str) -> str:
        with tempfile.TemporaryDirectory() as profile:
            command = [
                *(self._command, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *(f"--user-data-dir={profile}", f"--virtual-time-budget={SETTLED_MILLIS}"),
                *arguments,
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PAGE_LIMIT_SECONDS, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout
