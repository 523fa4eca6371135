"""TRL's trainers write their weights into vLLM servers, which go on answering.

Ours is the ``weight_transfer`` of TRL's ``AsyncGRPOTrainer``: an object with the methods of its
``WeightTransferProtocol`` (``trl/experimental/async_grpo/async_grpo_trainer.py`` of TRL 1.16). Neither TRL nor torch
is imported here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kv_connector.exceptions import WeightsError
from kv_connector.weights.sender import LANDING_LIMIT_SECONDS, WeightSender
from kv_connector.weights.sender_options import keys_of, sender_options
from kv_connector.weights.servers import Server, checked_urls
from kv_connector.weights.staging import Staging
from kv_connector.weights.versions import Versions

logger = logging.getLogger("kv_connector")
READY_LIMIT_SECONDS = 240.0
"""TRL's own ``vllm_server_timeout``."""
ANSWER_LIMIT_SECONDS = 60.0
"""Of one page: vLLM collects what it says of its environment with the first question."""


class KvMessengerWeightTransfer:
    """Sends a trainer's weights into vLLM servers, one whole version after the other.

    ``AsyncGRPOTrainer(…, weight_transfer=KvMessengerWeightTransfer(["http://127.0.0.1:8000"]))``. The servers need
    ``VLLM_SERVER_DEV_MODE=1`` and ``--weight-transfer-config '{"backend":"kv_messenger"}'``. For one thread, of the
    rank that TRL calls; the process has a JVM from the first update on. It keeps one copy of the model in this host's
    memory, and no reference to any tensor. It converts nothing: a server loads other types as its checkpoint's.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        listen: str = "",
        first_version: int = 0,
        landing_limit_seconds: float = LANDING_LIMIT_SECONDS,
        ready_limit_seconds: float = READY_LIMIT_SECONDS,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """``servers`` are URLs, such as http://127.0.0.1:8000. Raises OptionError or WeightsError; connects to nothing.

        ``listen`` is where servers dial this process, HOST or HOST:PORT; "" is a port of 127.0.0.1. Any other needs
        ``weights_secret_file`` here and on the servers. ``first_version`` is the number of the first update, above what
        the servers serve, and 0 the time in ms; each update has a higher one. ``landing_limit_seconds`` is for the
        bytes of one update, ``ready_limit_seconds`` for servers that are starting. ``options`` are those of
        docs/options.md, which count before the environment's ``KV_MESSENGER_…``.
        """
        self._urls = checked_urls(servers)
        self._versions = Versions(first_version)
        self._options = sender_options(listen, options or {}, "listen")
        self._landing_limit_seconds = landing_limit_seconds
        self._ready_limit_seconds = ready_limit_seconds
        self._staging = Staging()
        self._sender: WeightSender | None = None
        self._served = False
        """Whether an update has succeeded."""

    def init_weight_transfer(self) -> None:
        """Waits for the servers. Raises WeightsError if one does not come up, or has another backend for weights."""
        for url in self._urls:
            Server(url, ANSWER_LIMIT_SECONDS, keys_of(self._options)).await_ready(self._ready_limit_seconds)

    def pause(self) -> None:
        """Nothing: servers go on answering until all is there, and load it between two steps."""

    def send_weights(self, iterator: Iterable[tuple[str, Any]]) -> None:
        """Copies (name, tensor) pairs, and returns when the servers serve them; nothing answers with a part of them.

        Tensors are whole, of any shape, and on any device; those of a later update are those of the first, of the same
        types and shapes in the same order. Raises WeightsError if the tensors cannot be sent, if one server refuses the
        first update, or if no server serves a later one; OSError if this host has not the memory. A server that
        misses a later update is logged, answers with what it has, and is asked again with the next update.
        """
        began = time.monotonic()
        manifest, memory = self._staging.take(iterator)
        copied = time.monotonic()
        if unsound := self._staging.not_finite():
            logger.error("of the weights that are sent, %s", unsound)
        version = self._versions.next()
        try:
            failed: dict[str, str] = {}
            if self._sender is None:
                self._sender = WeightSender(self._options, manifest, self._urls, memory)
                failed = self._sender.connect()
            if len(failed) < len(self._urls):
                failed |= self._sender.send(version, self._landing_limit_seconds)
        except BaseException:
            self.destroy()
            raise
        if failed:
            self.destroy()  # what was posted for a server that is late may not mix with the next update
            self._judge(failed)
        self._served = True
        logger.info(
            "version %d of the weights is served by %d of %d servers: %d bytes, copied in %.2f s, served %.2f s later",
            version,
            len(self._urls) - len(failed),
            len(self._urls),
            manifest.length_bytes,
            copied - began,
            time.monotonic() - copied,
        )

    def resume(self) -> None:
        """Nothing: no server was paused."""

    def destroy(self) -> None:
        """Ends the connections; servers keep what they serve. A later update makes new ones. Harmless a second time."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def _judge(self, failed: Mapping[str, str]) -> None:
        sentences = [f"{url}: {reason}" for url, reason in failed.items()]
        if not self._served or len(failed) == len(self._urls):
            raise WeightsError("; ".join(sentences))
        for sentence in sentences:
            logger.error("a server keeps its weights, and is asked again with the next update: %s", sentence)
