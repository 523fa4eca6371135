"""The engine's messengers as its scheduler knows them, from their opening until the engine ends or sleeps."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from kv_connector.configuration.messenger_addresses import host_text
from kv_connector.pulls.pull_hint import SOURCE
from kv_connector.vllm.metadata import MessengerAddress
from kv_connector.vllm.request_name import read_name
from kv_connector.vllm.request_numbers import shown
from kv_connector.vllm.transfer_params import PROMPT_DIGEST, PROMPT_TOKENS, Side


@dataclass
class OpenMessengers:
    """Their addresses in the order of the ranks, and what their workers have found since they were opened."""

    addresses: tuple[MessengerAddress, ...] = ()
    counted_right: int = 0
    """The number of messengers that have found their GPU's first pass counted correctly."""

    @classmethod
    def at(cls, addresses: Mapping[tuple[int, int], object]) -> Self:
        """Those that were just opened, by rank; other connectors' objects among them are ignored."""
        return cls(tuple(each for _, each in sorted(addresses.items()) if isinstance(each, MessengerAddress)))

    def source(self) -> dict[str, Any]:
        """What a later request names this engine by, to pull from it; empty if its address is not known."""
        return {SOURCE: self._address()} if self.addresses else {}

    def _address(self) -> dict[str, Any]:
        return {
            "remote_host": host_text([messenger.address for messenger in self.addresses]),
            "remote_port": self.addresses[0].address.port,
        }

    def answer(
        self, base: str, request_id: str, prompt_tokens: int, side: Side, logger: logging.Logger, digest: str = ""
    ) -> dict[str, Any]:
        """What vLLM's own router needs to send later requests to both sides at once, and a proxy for the second leg.

        ``digest``: of the prompt that was computed, if one was.
        """
        if not self.addresses:  # the decoder then refuses with an error instead of silently computing
            logger.error("request %s cannot be fetched: no worker has reported an address", shown(request_id))
        answer: dict[str, Any] = {
            "transfer_mode": "push",
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_request_id": request_id,
            "transfer_id": base,
            PROMPT_TOKENS: prompt_tokens,
            "tp_size": side.tp_size,
            "pp_size": side.pp_size,
        }
        if digest:
            answer[PROMPT_DIGEST] = digest
        if side.is_one_of_several:
            answer |= {"of_data_parallel_rank": True, "of_choice": read_name(request_id).choice}
        if self.addresses:
            answer |= {"remote_engine_id": self.addresses[0].engine_id, **self._address()}
        return answer
