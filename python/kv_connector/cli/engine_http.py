"""Asks an engine or a router over HTTP for JSON or text."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from kv_connector.configuration.engine_keys import REFUSED, EngineKeys, wants_key
from kv_connector.configuration.option_values import shown
from kv_connector.runtime import keyed_http, plain_http


def ask_json(
    url: str, path: str, body: dict[str, Any] | None, limit_seconds: float, keys: EngineKeys
) -> dict[str, Any]:
    """The JSON object that answers a GET, or a POST of ``body``; raises OSError with the address and the reason."""
    text = _ask(url, path, body, limit_seconds, keys)
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as garbled:
        raise OSError(f"{url}{path} answered no JSON: {plain_http.shortened(text)}") from garbled
    if not isinstance(answer, dict):
        raise OSError(f"{url}{path} answered no JSON object: {plain_http.shortened(text)}")
    return answer


def ask_text(url: str, path: str, limit_seconds: float, keys: EngineKeys) -> str:
    """The text that answers a GET; raises OSError with the address and the reason."""
    return _ask(url, path, None, limit_seconds, keys)


def require_address(url: str) -> None:
    """Raises OSError with an example unless it is the address of a server."""
    try:
        plain_http.with_port(url)
    except ValueError as wrong:
        raise _no_address(url) from wrong


def _no_address(url: str) -> OSError:
    return OSError(f"the address is {shown(url)}, expected one such as http://127.0.0.1:8000")


def _ask(url: str, path: str, body: dict[str, Any] | None, limit_seconds: float, keys: EngineKeys) -> str:
    asked = url.rstrip("/") + path
    try:
        asked = plain_http.with_port(asked)
        if body is None:
            answer = keyed_http.ask("GET", asked, keys, limit_seconds=limit_seconds)
        else:
            kind = {"Content-Type": "application/json"}
            sent = json.dumps(body).encode()
            answer = keyed_http.ask("POST", asked, keys, limit_seconds=limit_seconds, body=sent, headers=kind)
    except ValueError as wrong:
        raise _no_address(url) from wrong
    except OSError as failure:
        raise OSError(f"{asked} cannot be asked ({failure})") from failure
    if answer.status in REFUSED:
        raise OSError(wants_key(asked, answer.status))
    if answer.status != HTTPStatus.OK:
        raise OSError(f"{asked} answered {answer.status}: {plain_http.shortened(answer.text)}")
    return answer.text
