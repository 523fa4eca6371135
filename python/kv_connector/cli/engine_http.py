"""Asks an engine or a router over HTTP, without any proxy that the environment names."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

REASON_LENGTH_MAX = 300


def ask_json(url: str, path: str, body: dict[str, Any] | None, limit_seconds: float) -> dict[str, Any]:
    """The JSON object that answers a GET, or a POST of ``body``; raises OSError with the address and the reason."""
    text = _ask(url, path, body, limit_seconds)
    try:
        answer = json.loads(text)
    except ValueError as garbled:
        raise OSError(f"{url}{path} answered no JSON: {text[:REASON_LENGTH_MAX]}") from garbled
    if not isinstance(answer, dict):
        raise OSError(f"{url}{path} answered no JSON object: {text[:REASON_LENGTH_MAX]}")
    return answer


def ask_text(url: str, path: str, limit_seconds: float) -> str:
    """The text that answers a GET; raises OSError with the address and the reason."""
    return _ask(url, path, None, limit_seconds)


def _ask(url: str, path: str, body: dict[str, Any] | None, limit_seconds: float) -> str:
    split = urlsplit(url)
    if split.scheme not in ("http", "https") or not split.hostname:
        raise OSError(f"the address is {url!r}, expected one such as http://127.0.0.1:8000")
    kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
    connection = kind(split.hostname, split.port, timeout=limit_seconds)
    try:
        sent = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", split.path.rstrip("/") + path, sent, headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as failure:
        raise OSError(f"{url}{path} cannot be asked ({failure})") from failure
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise OSError(f"{url}{path} answered {answer.status}: {text[:REASON_LENGTH_MAX]}")
    return text
