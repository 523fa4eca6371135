"""The HTTP request by which a decoder has a prefiller compute a retracted prompt again, with that prefiller's API key.

SGLang's own request has no key. A client names the host that is asked, so the key goes only to an address of a
messenger with which this decoder has had a session, whose handshake has shown that it is of this deployment; without
a shared secret only within this host. Blocks: for SGLang's threads for recomputes.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from kv_connector.configuration.engine_keys import REFUSED, bearer
from kv_connector.runtime import plain_http
from kv_connector.runtime.name_service import addresses_of

NAME_LIMIT_SECONDS = 5.0


class RecomputeCalls:
    """Those of one rank. It keeps no state but the key."""

    def __init__(self, key: str, hosts: Callable[[], Collection[str]], *, has_secret: bool) -> None:
        """``hosts`` gives those of messengers with which there has been a session."""
        self._key = key
        self._hosts = hosts
        self._has_secret = has_secret

    def ask(self, url: str, payload: Mapping[str, Any], limit_seconds: float) -> str:
        """Asks the server at ``url`` to compute a prompt again; returns why it does not, in one sentence, or ""."""
        asked = f"{url.rstrip('/')}/generate"
        parts = urlsplit(asked)
        headers, trusted = {"Content-Type": "application/json"}, []
        try:
            if self._key and (trusted := self._trusted_addresses(str(parts.hostname), int(parts.port or 0))):
                headers |= bearer(self._key)
            body = json.dumps(payload).encode()
            answer = plain_http.ask(  # at no other addresses: the name may have others by then
                "POST", asked, limit_seconds=limit_seconds, body=body, headers=headers, addresses=trusted
            )
        except (OSError, ValueError) as failure:
            return f"{_ASKED} at {url} does not answer ({failure}): look at its log"
        if answer.status in REFUSED:
            return f"{_ASKED} at {url} answers {answer.status}, expected 200: {self._remedy(trusted)}"
        if answer.status >= 400:
            return f"{_ASKED} at {url} answers {answer.status}: {plain_http.shortened(answer.text)}"
        return ""

    def _trusted_addresses(self, host: str, port: int) -> list[str]:
        """Those of this host that may have the key, in the order of the name service. Raises OSError or ValueError."""
        found = [str(address[0]) for *_, address in addresses_of(host, port, NAME_LIMIT_SECONDS)]
        if not self._has_secret:
            return [each for each in found if _is_loopback(each)]
        known = self._hosts()
        if host in known:
            return found
        written = [each for each in found if each in known]
        return written or next((those for each in known if (those := _of_both(found, each, port))), [])

    def _remedy(self, trusted: Sequence[str]) -> str:
        if not self._key or trusted:
            return "set engine_api_key_file on the decoder to a file with the prefiller's --api-key"
        return (
            "this decoder has had no session with a messenger at that address, so its key was not sent: have requests"
            " name the prefiller by the address where its messenger listens"
        )


_ASKED = "the prefiller's server, which is to compute a retracted prompt again,"


def _of_both(found: Sequence[str], known: str, port: int) -> list[str]:
    """Those of the addresses that a known host has; none of a name that is gone, as a prefiller's that has ended."""
    try:
        its = {str(address[0]) for *_, address in addresses_of(known, port, NAME_LIMIT_SECONDS)}
    except (OSError, ValueError):
        return []
    return [each for each in found if each in its]


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
