"""Images, videos and sounds of which a request has the place in its prompt and not the content.

vLLM lets a decoder's client leave the content out, because the prompt's KV comes from a prefiller. Where it does not
come, vLLM's worker would look for the content, and ends its engine. So such a request gets the KV behind them all, or
it is refused: no prefiller is named, the KV cannot come, or has gone with the blocks of a preempted request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kv_connector.vllm.kv_groups import KvGroup, loaded_tokens
from kv_connector.vllm.request_numbers import shown
from kv_connector.vllm.transfer_params import Ask, Receive, Refused, Side

SIZES = frozenset(
    (
        *("image_grid_thw", "video_grid_thw", "timestamps", "second_per_grid_ts", "image_sizes", "video_image_sizes"),
        *("audio_num_tokens", "audio_feature_lengths"),
    )
)
"""What says how many tokens an image, a video or a sound has, and nothing of its content, by vLLM's names."""


def end_of_absent(request: Any) -> int:
    """How many of the prompt's first tokens need KV from elsewhere; 0 if there is content for all."""
    return max((_end(each) for each in getattr(request, "mm_features", None) or () if _is_absent(each)), default=0)


def _is_absent(feature: Any) -> bool:
    """Content that was sent before is in vLLM's own cache, and is put in before a connector sees the request."""
    return isinstance(feature.data, Mapping) and SIZES.issuperset(feature.data)


def _end(feature: Any) -> int:
    return int(feature.mm_position.offset) + int(feature.mm_position.length)


class AbsentMedia:
    """Refuses what this engine could not compute, and what does not come from elsewhere. Holds no request's state.

    An engine that computes what could not be loaded ends no request for it: there such a one waits until its client
    leaves. Used by the engine core's thread only.
    """

    def __init__(self, groups: Sequence[KvGroup], side: Side, logger: logging.Logger) -> None:
        self._groups = groups
        self._side = side
        self._logger = logger

    def queued(self, request: Any) -> None:
        """Has vLLM ask the connector for the prompt in any case: with ``prompt_logprobs`` it would not."""
        if self._is_computable(request, 0):
            return
        request.skip_reading_prefix_cache = False
        if self._side.recomputes:
            self._logger.warning(
                "request %s has an image, a video or a sound without its content, and kv_load_failure_policy is"
                " 'recompute': it waits until its client leaves if the KV does not come; 'fail' ends it",
                shown(request.request_id),
            )

    def _is_computable(self, request: Any, resume_token: int) -> bool:
        """Whether this engine can compute the prompt from this token on; it computes the last one in any case."""
        absent = 0 if self._side.gets_encoded_media else end_of_absent(request)
        if absent and _shows_prompt(request):
            return False
        return absent <= min(resume_token, int(request.num_prompt_tokens) - 1)

    def matched(self, request: Any, computed_tokens: int, found: tuple[int | None, bool]) -> tuple[int | None, bool]:
        """What the connector answers vLLM: ``found``, or a load that ``asked`` refuses."""
        tokens, _ = found
        if tokens is None or self._is_computable(request, computed_tokens + tokens):
            return found
        if self._side.recomputes:
            return None, False
        return max(1, loaded_tokens(self._groups, int(request.num_prompt_tokens)) - computed_tokens), True

    def asked(
        self,
        request: Any,
        ask: Ask,
        external_tokens: int,
        loaded: Callable[[Any, Receive], int],
        why_here: Callable[[str], str],
    ) -> Ask:
        """The ask of a request that has its blocks, or Refused where ``matched`` replaced what was found.

        ``loaded``: up to which token a fetch brings the KV. ``why_here``: why the prompt would be computed here.
        """
        if external_tokens <= 0 or isinstance(ask, Refused) or self._is_computable(request, 0):
            return ask
        because = why_here(request.request_id)
        if isinstance(ask, Receive) and not because and self._is_computable(request, loaded(request, ask)):
            return ask
        return Refused(
            f"this prompt of {request.num_prompt_tokens} tokens has an image, a video or a sound without its content,"
            f" which this engine would have to compute{f' ({because})' if because else ''}, expected it, or the KV of"
            " all of them: send the content too, or a request to the prefiller too, with text behind them and without"
            " prompt_logprobs",
            ask if isinstance(ask, Receive) else None,
        )


def _shows_prompt(request: Any) -> bool:
    """With ``prompt_logprobs`` vLLM computes all of the prompt, and takes no KV for it."""
    return getattr(getattr(request, "sampling_params", None), "prompt_logprobs", None) is not None
