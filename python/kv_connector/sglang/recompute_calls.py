"""The HTTP request by which a decoder has a prefiller compute a retracted prompt again, with that prefiller's API key.

SGLang's own request has no key. A client names the host that is asked, so the key goes only to an address of a
messenger with which this decoder has had a session, whose handshake has shown that it is of this deployment; without
a shared secret only within this host. Blocks: for SGLang's threads for recomputes.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Collection, Mapping
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
        headers, trusted = {"Content-Type": "application/json"}, ""
        try:
            if self._key and (trusted := self._trusted_address(str(parts.hostname), int(parts.port or 0))):
                headers |= {"Host": parts.netloc, **bearer(self._key)}
                address = f"[{trusted}]" if ":" in trusted else trusted
                asked = parts._replace(netloc=f"{address}:{parts.port}").geturl()  # a name may mean another one by then
            body = json.dumps(payload).encode()
            answer = plain_http.ask("POST", asked, limit_seconds=limit_seconds, body=body, headers=headers)
        except (OSError, ValueError) as failure:
            return f"{_ASKED} at {url} does not answer ({failure}): look at its log"
        if answer.status in REFUSED:
            return f"{_ASKED} at {url} answers {answer.status}, expected 200: {self._remedy(trusted)}"
        if answer.status >= 400:
            return f"{_ASKED} at {url} answers {answer.status}: {plain_http.shortened(answer.text)}"
        return ""

    def _trusted_address(self, host: str, port: int) -> str:
        """An address of this host that may have the key; "" if none may. Raises OSError or ValueError."""
        found = [str(address[0]) for *_, address in addresses_of(host, port, NAME_LIMIT_SECONDS)]
        if not self._has_secret:
            return next((each for each in found if _is_loopback(each)), "")
        known: set[str] = set()
        for each in self._hosts():
            known |= {str(address[0]) for *_, address in addresses_of(each, port, NAME_LIMIT_SECONDS)}
        return next((each for each in found if each in known), "")

    def _remedy(self, trusted: str) -> str:
        if not self._key or trusted:
            return "set engine_api_key_file on the decoder to a file with the prefiller's --api-key"
        return (
            "this decoder has had no session with a messenger at that address, so its key was not sent: have requests"
            " name the prefiller by the address where its messenger listens"
        )


_ASKED = "the prefiller's server, which is to compute a retracted prompt again,"


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
