"""A server of vLLM or SGLang that takes weights, over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from kv_connector.configuration.engine_keys import NO_KEYS, REFUSED, EngineKeys, wants_key
from kv_connector.configuration.option_values import shown
from kv_connector.exceptions import WeightsError
from kv_connector.runtime import keyed_http, plain_http
from kv_connector.weights.routes import Routes, SglangRoutes, VllmRoutes

READY_POLL_SECONDS = 1.0


def checked_urls(servers: Sequence[str]) -> list[str]:
    """The URLs of servers, each once; raises WeightsError."""
    urls = [url.rstrip("/") for url in ([servers] if isinstance(servers, str) else servers)]
    if not urls or len(set(map(_asked, urls))) < len(urls):
        raise WeightsError(f"servers are {urls}, expected URLs, each once: name them")
    return urls


def _asked(url: str) -> str:
    """The URL with its port; raises WeightsError if it is no server's."""
    try:
        return plain_http.with_port(url)
    except ValueError as wrong:
        raise WeightsError(f"the server is {shown(url)}, expected a URL such as http://127.0.0.1:8000") from wrong


class KeyRefusedError(WeightsError):
    """A server wants another API key than it was shown."""


class Server:
    """One server, of the engine that answers. Each method blocks until it has answered, and raises WeightsError."""

    def __init__(self, url: str, limit_seconds: float, keys: EngineKeys = NO_KEYS) -> None:
        """``limit_seconds`` is for each answer; ``keys`` are the server's. Raises WeightsError if it is no URL."""
        self.url = url.rstrip("/")
        self._asked = _asked(self.url)
        self._keys = keys
        self._limit_seconds = limit_seconds
        self._found: Routes | None = None

    def await_ready(self, limit_seconds: float) -> None:
        """Returns when it is up and takes weights of this package; raises WeightsError if it does not, or is late.

        One that refuses the key is up, and not waited for.
        """
        deadline = time.monotonic() + limit_seconds
        while True:
            try:
                routes = self._routes()
                break
            except KeyRefusedError:
                raise
            except WeightsError as down:
                if time.monotonic() > deadline:
                    raise WeightsError(f"{down}, and was waited for {limit_seconds:g} s: start it") from down
            time.sleep(READY_POLL_SECONDS)
        routes.check()

    def announce(self, init_info: Mapping[str, object]) -> None:
        """Gives it the sender's address and the tensors; the server dials the sender."""
        self._routes().announce(init_info)

    def load(self, update_id: int, version: int, under_way: str) -> None:
        """Lets its engine load what has landed. What came of it, the server's messenger says.

        ``under_way`` is CONTINUE, FINISH, or "" for what the engine does by itself.
        """
        self._routes().load(update_id, version, under_way)

    def version(self) -> str:
        """The version of the weights that it serves, as the last sender named it; raises WeightsError without one."""
        version = self._routes().version()
        if not version:
            raise WeightsError(f"{self.url} names no version of its weights: is it the API server of an engine?")
        return version

    def status(self) -> Mapping[str, Any]:
        """What its messenger of weights knows: ``landing``, ``ended`` by reason, ``loaded``, ``refused``."""
        try:
            return self._routes().status()
        except (ValueError, RecursionError) as garbled:
            raise WeightsError(f"{self.url} describes its weights by no JSON: {garbled}") from garbled

    def _routes(self) -> Routes:
        """Found out by its first answer: of the two engines only vLLM has a page of its version."""
        if self._found is None:
            status, _ = self._answer("GET", "/version", None)
            if status == HTTPStatus.NOT_FOUND:
                self._found = SglangRoutes(self._ask, self._limit_seconds)
            else:
                self._found = VllmRoutes(self.url, self._ask)
        return self._found

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None) -> Mapping[str, Any]:
        status, text = self._answer(method, path, body)
        if status == HTTPStatus.NOT_FOUND:
            missing = self._found.missing if self._found is not None else ""
            raise WeightsError(f"{self.url} has no route {path.partition('?')[0]}: {missing}")
        if status != HTTPStatus.OK:
            raise WeightsError(f"{self.url}{path} answered {status}, expected 200: {plain_http.shortened(text)}")
        try:
            answered = json.loads(text)
        except (ValueError, RecursionError) as failure:
            raise WeightsError(f"{self.url}{path} did not answer: {failure}") from failure
        return answered if isinstance(answered, dict) else {}

    def _answer(self, method: str, path: str, body: Mapping[str, object] | None) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else {}
        try:
            answer = keyed_http.ask(
                method, self._asked + path, self._keys, limit_seconds=self._limit_seconds, body=data, headers=headers
            )
        except (OSError, ValueError) as failure:
            raise WeightsError(f"{self.url}{path} did not answer: {failure}") from failure
        if answer.status in REFUSED:
            raise KeyRefusedError(wants_key(self.url + path, answer.status))
        return answer.status, answer.text
