"""By which name a prompt that waits at a prefiller is sent: that of the weights which compute it.

A prompt is named when it is queued, and computed later. If the engine is given other weights or another adapter
meanwhile, it is announced by their name too, under a number of its own. Its decoder may have either: one that gets the
same weights later still asks by the name of before. The prompt's first pass settles which name is right, and the others
end. What has blocks by then keeps its name, and is not sent any further where other weights compute the rest: its new
name is announced and ended then, so that a decoder which asks by either computes the prompt at once.

Used by the engine core's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from logging import Logger
from typing import Any

from kv_connector.runtime.commands import Announce, PrefillEnded, PrefillOutcome
from kv_connector.vllm.ended_prefills import EndedPrefills
from kv_connector.vllm.metadata import StepMetadata
from kv_connector.vllm.prefill_chunks import Prefill
from kv_connector.vllm.request_numbers import RequestNumbers, shown


class PrefillNames:
    """Announces prefills by further names, and settles and ends those."""

    def __init__(
        self, digest_of: Callable[[Any], str], numbers: RequestNumbers, ended: EndedPrefills, logger: Logger
    ) -> None:
        self._digest_of = digest_of
        self._numbers = numbers
        self._ended = ended
        self._logger = logger

    def weights_changed(self, open_ones: Mapping[str, Prefill], meta: StepMetadata) -> None:
        """Prompts that wait are computed with other weights, or another adapter, than those that name them."""
        for prefill in open_ones.values():
            named = prefill.named_now(self._digest_of)
            if prefill.has_blocks:
                prefill.is_outdated |= named != prefill.name.computed_with
            elif not prefill.given_up and named not in (prefill.name.computed_with, *prefill.other_names):
                self._announce(prefill, named, meta)

    def _announce(self, prefill: Prefill, named: str, meta: StepMetadata) -> None:
        number, name = self._numbers.nameless(), prefill.name_of_now(self._digest_of)
        prefill.other_names[named] = number, name
        meta.announces.append(Announce(number, name.transfer, name.digest))

    def settled(self, request_id: str, prefill: Prefill, meta: StepMetadata, *, whole_table: bool) -> bool:
        """The step computes some of the prompt, or it is computed: False if its name is not that of the KV.

        vLLM may read an adapter's files for each pass.
        """
        named = prefill.named_now(self._digest_of)
        if prefill.sent_tokens == 0 and not prefill.is_outdated:
            if named != prefill.name.computed_with:
                self._rename(request_id, prefill, named, meta)
            self.end_others(prefill, "failed", meta)
            return True
        if not (whole_table or prefill.sent_tokens < prefill.prompt_tokens):
            return True
        if named == prefill.name.computed_with and not prefill.is_outdated:
            return True
        if named not in (prefill.name.computed_with, *prefill.other_names):
            self._announce(prefill, named, meta)  # to be ended: a decoder that has the same weights asks by this name
        self._logger.warning(
            "request %s is not sent any further: other weights or another adapter were loaded while it had blocks;"
            " its decoder fails it or computes it (kv_load_failure_policy)",
            shown(request_id),
        )
        return False

    def _rename(self, request_id: str, prefill: Prefill, named: str, meta: StepMetadata) -> None:
        before = self._numbers.of(request_id)
        if named not in prefill.other_names:
            self._announce(prefill, named, meta)
        number, prefill.name = prefill.other_names.pop(named)
        self._numbers.adopt(request_id, number)
        self._end(before, "failed", meta)

    def end_others(self, prefill: Prefill, outcome: PrefillOutcome, meta: StepMetadata) -> None:
        """The prompt is sent by its name, or not at all."""
        for number, _ in prefill.other_names.values():
            self._end(number, outcome, meta)
        prefill.other_names.clear()

    def _end(self, number: str, outcome: PrefillOutcome, meta: StepMetadata) -> None:
        """The engine gets no report of a name by which nothing was sent."""
        self._ended.end_quietly(number)
        meta.prefill_ends.append(PrefillEnded(number, outcome))
        meta.unreported.append(number)
