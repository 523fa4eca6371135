"""Which requests and blocks fit a fetch. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kv_connector.vllm.kv_groups import NULL_BLOCK, KvGroup, has_state, transferred_tokens
from kv_connector.vllm.request_numbers import shown
from kv_connector.vllm.transfer_params import Receive, Refused

CACHE_SALT_LENGTH_MAX = 1024
"""In UTF-16 code units, as in the protocol."""
PRIORITY_MAX = (1 << 31) - 1


def unfit_to_be_enqueued(request: Any) -> str:
    """Why a prefiller cannot enqueue this request's prompt, in one sentence; "" if it can."""
    if beyond_ids := beyond_token_ids(request):
        return (
            f"kv_transfer_params.prefiller sends token ids only and the prompt has"
            f" {beyond_ids}, expected plain tokens: send the request to both sides"
        )
    salt = getattr(request, "cache_salt", None) or ""
    if not salt.isprintable() or len(salt.encode("utf-16-le")) // 2 > CACHE_SALT_LENGTH_MAX:
        return (
            f"cache_salt is {shown(salt)!r}, expected one line of at most {CACHE_SALT_LENGTH_MAX} characters for a"
            " prompt that a prefiller enqueues: shorten it, or send the request to both sides"
        )
    priority = getattr(request, "priority", 0)
    if not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        return (
            f"priority is {priority}, expected {-PRIORITY_MAX} to {PRIORITY_MAX} for a prompt that a prefiller"
            " enqueues: choose another, or send the request to both sides"
        )
    return ""


def beyond_token_ids(request: Any) -> str:
    """What the prompt has beside its token ids, in words; "" if it is plain tokens."""
    beyond = [name for name in ("lora_request", "mm_features", "prompt_embeds") if _is_given(request, name)]
    return " and ".join(beyond) or ("none" if request.prompt_token_ids is None else "")


def _is_given(request: Any, name: str) -> bool:
    """A list may be empty; a tensor raises where it is taken for true or false."""
    value = getattr(request, name, None)
    return value is not None and not (isinstance(value, list) and not value)


def misfit(
    request: Any,
    ask: Receive,
    groups: Sequence[KvGroup],
    first_token: int,
    tables: Sequence[Sequence[int]],
    not_held: str = "",
) -> Refused | None:
    """Why the blocks, those to fill in each group, or the request do not fit a fetch; None if they do.

    ``not_held``: why the prefiller does not have what is asked for.
    """
    if not_held:
        return Refused(not_held)
    tokens = transferred_tokens(groups, request.num_prompt_tokens)
    for index, (group, blocks) in enumerate(zip(groups, tables, strict=True)):
        if first_token % group.block_tokens:
            return Refused(
                f"{first_token} tokens are computed already, expected whole blocks of {group.block_tokens}: start"
                " this engine with prefix caching of whole blocks"
            )
        needed = group.needed(first_token, tokens)
        if len(blocks) != needed.stop - needed.start or (group.kind != "full" and NULL_BLOCK in blocks):
            return Refused(
                f"the engine gave the request blocks {blocks} in KV cache group {index}, expected"
                f" {needed.stop - needed.start} that hold KV: report this with the engine's version"
            )
    if ask.decoder_first and has_state(groups):
        return Refused(
            "kv_transfer_params.prefiller is set and the model keeps a state of all tokens, of which the prefiller"
            " must leave the last one out, expected a request to both sides: send it to the prefiller too"
        )
    if ask.decoder_first and (unfit := unfit_to_be_enqueued(request)):
        return Refused(unfit)
    return None


def ends_in_media(request: Any, groups: Sequence[KvGroup]) -> str:
    """Why the prefiller cannot leave the prompt's last token out, in one sentence; "" if it can, or need not.

    vLLM's worker derives positions from all tokens of a video, and ends its engine where the last one is missing.
    """
    features = getattr(request, "mm_features", None)
    if not features or not has_state(groups) or request.get_skip_reading_prefix_cache():
        return ""
    tokens = int(request.num_prompt_tokens)
    sent, last = transferred_tokens(groups, tokens), features[-1].mm_position
    if int(last.offset) + int(last.length) <= sent:
        return ""
    return (
        f"this prompt of {tokens} tokens ends with an image, a video or a sound and the model keeps a state of all"
        " tokens, of which the prefiller must leave the last one out, expected text at the end: put some behind it, or"
        " leave kv_transfer_params out"
    )


def stands_for_rejected(request: Any) -> bool:
    """Whether this is vLLM's stand-in that notifies connectors of a request which it did not admit.

    It has the kv_transfer_params of that request, a made-up id and prompt, and is aborted at once.
    """
    return getattr(request, "abort_immediately", False) is True
