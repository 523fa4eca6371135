"""HTTP to engines whose servers may want an API key: a key goes to the URL that is asked, and nowhere else.

A server without keys takes a request with one, and one that refuses a key has done nothing, so keys are shown one after
the other. An answer of 401 or 403 to all of them is the caller's, with :func:`wants_key` for its user.
"""

from __future__ import annotations

from collections.abc import Mapping

from kv_connector.configuration.engine_keys import REFUSED, EngineKeys, bearer
from kv_connector.runtime import plain_http


def ask(
    method: str,
    url: str,
    keys: EngineKeys,
    *,
    limit_seconds: float,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> plain_http.Answer:
    """As ``plain_http.ask``, with each key until one is not refused; ``limit_seconds`` is for each."""
    first: plain_http.Answer | None = None
    for key in keys.in_turn():
        sent = {**(headers or {}), **bearer(key)}
        answer = plain_http.ask(method, url, limit_seconds=limit_seconds, body=body, headers=sent)
        if answer.status not in REFUSED:
            return answer
        first = first or answer
    assert first is not None
    return first
