"""Asks a messenger for the pages that need its key."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping

from kv_connector.configuration import shared_secret
from kv_connector.configuration.engine_keys import bearer
from kv_connector.configuration.host_addresses import port_of
from kv_connector.exceptions import OptionError
from kv_connector.runtime import page_key
from kv_connector.runtime.plain_http import Answer, ask, shortened

PAGE_LIMIT_SECONDS = 5.0
OK = 200
NO_KEY = 401
REMEDY = (
    f"set {shared_secret.SECRET_FILE_VARIABLE} as the engine has it, or run this command as the engine's user on its"
    " host"
)


def open_page(method: str, page: str, path: str) -> str:
    """The answer's text; raises OSError with the page's address and what to do."""
    url = f"http://{page}{path}"
    refused: Answer | None = None
    for key in [*keys(page), ""]:
        try:
            answer = ask(
                method,
                url,
                body=b"" if method == "POST" else None,
                headers=bearer(key),
                limit_seconds=PAGE_LIMIT_SECONDS,
            )
        except (OSError, ValueError) as failure:
            raise OSError(
                f"{url} cannot be reached ({failure}): look at metrics_host and metrics_port of the engine"
            ) from failure
        if answer.status == OK:
            if not _is_messengers(path, answer.text):
                raise OSError(
                    f"{url} answers {shortened(answer.text)!r}, expected a messenger: look at metrics_host and"
                    " metrics_port of the engine"
                )
            return answer.text
        refused = refused or answer
        if answer.status != NO_KEY:
            raise OSError(f"{url} refuses ({answer.status}: {shortened(answer.text)}): look at the engine's log")
    assert refused is not None
    raise OSError(f"{url} refuses ({refused.status}): {REMEDY}")


def _is_messengers(path: str, text: str) -> bool:
    """Whether a messenger gives this answer; another server may answer to anything, and means nothing by it."""
    if path != "/state":
        return text.startswith(_GIVEN[path])
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(state, dict) and "peers" in state


_GIVEN = {"/drain": "draining", "/undrain": "not draining"}
"""How a messenger's answer begins."""


def keys(page: str, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """The keys that may fit, in the order in which they are tried."""
    try:
        secret = shared_secret.find_secret("", "", environment)
    except OptionError:
        secret = ""  # an unreadable file: the key may be kept on this host
    if secret:
        yield page_key.derived(secret)
    port = port_of(page.rpartition(":")[2])
    if port is not None:
        yield from page_key.kept(port)


def show_state(page: str, say: Callable[[str], object], complain: Callable[[str], object]) -> int:
    """Prints the state as JSON; returns the exit code."""
    try:
        say(f"{open_page('GET', page, '/state').rstrip()}\n")
    except OSError as failure:
        complain(f"{failure}\n")
        return 1
    return 0


def show_key(page: str, say: Callable[[str], object], complain: Callable[[str], object]) -> int:
    """Prints the key that opens the messenger's pages, for a browser or curl; returns the exit code."""
    for key in keys(page):
        try:
            answer = ask(
                "HEAD",
                f"http://{page}/state",
                headers=bearer(key),
                limit_seconds=PAGE_LIMIT_SECONDS,
            )
        except (OSError, ValueError) as failure:
            complain(f"http://{page} cannot be reached ({failure}): look at metrics_host and metrics_port\n")
            return 1
        if answer.status != NO_KEY:
            say(f"{key}\n")
            return 0
    complain(f"no key for http://{page} is known here: {REMEDY}\n")
    return 1
