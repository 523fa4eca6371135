"""Drains messengers and waits until they hold nothing for unfinished requests, before an engine is ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kv_connector.cli.protected_pages import OK, PAGE_LIMIT_SECONDS, open_page
from kv_connector.runtime.plain_http import ask, shortened

AT_REST = (
    "kv_messenger_fetches_open",
    "kv_messenger_prefills_open",
    "kv_messenger_grants_waiting",
    "kv_messenger_writes_in_flight",
    "kv_messenger_windows_open",
    "kv_messenger_pages_quarantined",
)
"""Gauges that are zero if nothing is held."""
OFFERS_MADE = 'kv_messenger_offers_made_total{reason="held"'
HAND_OVER_SECONDS = 30.0
"""For how long another engine has pulled nothing when the rest of a cache is given up, if the command names no time."""
LOOK_SECONDS = 0.5
QUIET_LOOKS = 3
"""The number of consecutive checks: between two requests there is a moment in which nothing is held."""


def drain(
    pages: Sequence[str], limit_seconds: float, say: Callable[[str], object], hand_over_seconds: float = 0.0
) -> int:
    """Makes messengers report that they are not ready, then does ``wait_idle``; returns 1 also if one refuses."""
    return _ask_all(pages, "/drain", say) or wait_idle(pages, limit_seconds, say, hand_over_seconds)


def undrain(pages: Sequence[str], say: Callable[[str], object]) -> int:
    """Makes drained messengers report that they are ready again; returns 1 if one refuses."""
    return _ask_all(pages, "/undrain", say)


def _ask_all(pages: Sequence[str], path: str, say: Callable[[str], object]) -> int:
    failed = 0
    for page in pages:
        try:
            open_page("POST", page, path)
        except OSError as failure:
            say(f"{failure}\n")
            failed = 1
    return failed


def wait_idle(
    pages: Sequence[str], limit_seconds: float, say: Callable[[str], object], hand_over_seconds: float = 0.0
) -> int:
    """Returns 0 when all are idle, 1 with a message after the limit or if a page cannot be read.

    Idle engines are kept until no other engine has been offered anything for ``hand_over_seconds``, or to the limit.
    """
    started = offered_at = time.monotonic()
    quiet, offers = 0, 0.0
    while True:
        try:
            shown = {page: read(page) for page in pages}
            holds = {page: held(text) for page, text in shown.items()}
            offers, before = sum(map(offers_made, shown.values())), offers
        except (OSError, ValueError) as failure:
            say(_with_remedy(failure))
            return 1
        now = time.monotonic()
        late = now - started >= limit_seconds
        offered_at = now if offers != before else offered_at
        quiet = 0 if any(holds.values()) else quiet + 1
        if quiet >= QUIET_LOOKS and (late or now - offered_at >= hand_over_seconds):
            return 0
        if late:
            named = "; ".join(f"{page}: {figures}" for page, figures in holds.items() if figures)
            say(f"not idle after {limit_seconds:g} s ({named or 'at rest just now'})\n")
            return 1
        time.sleep(LOOK_SECONDS)


def read(page: str) -> str:
    """The metrics at HOST:PORT; raises OSError with the address."""
    url = f"http://{page}/metrics"
    try:
        answer = ask("GET", url, limit_seconds=PAGE_LIMIT_SECONDS)
    except (OSError, ValueError) as failure:
        raise OSError(f"{url} cannot be read ({failure})") from failure
    if answer.status != OK:
        raise OSError(f"{url} cannot be read ({answer.status}: {shortened(answer.text)})")
    shown = {line.rpartition(" ")[0] for line in answer.text.splitlines()}
    missing = [name for name in AT_REST if name not in shown]
    if len(missing) == len(AT_REST):
        raise OSError(f"{url} is not the page of a messenger")
    if missing:
        raise OSError(f"{url} shows no {missing[0]}, expected the whole page of a messenger")
    return answer.text


def held(text: str) -> str:
    """The gauges that are not zero, in words; "" if all are."""
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(AT_REST))
    return ", ".join(f"{name} {value}" for name, value in values.items() if float(value) != 0)


def offers_made(text: str) -> float:
    """How often the messenger has offered another engine what its own engine's prefix cache holds."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(OFFERS_MADE))


def _with_remedy(failure: Exception) -> str:
    return f"{failure}: look at metrics_host and metrics_port of the engine\n"
