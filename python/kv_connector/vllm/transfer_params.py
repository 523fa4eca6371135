"""Parses ``kv_transfer_params``: what one request asks of this engine. Pure; the input is untrusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from kv_connector.configuration.host_addresses import PORT_MAX
from kv_connector.configuration.messenger_addresses import Address, Messengers, is_host, read_list
from kv_connector.configuration.options import Role
from kv_connector.vllm.request_name import (
    BY_PROMPT,
    TRANSFER_ID_LENGTH_MAX,
    RequestName,
    is_transfer_id,
    possible_names,
    read_name,
    transfer_of,
)

PROMPT_TOKENS = "remote_prompt_tokens"
PROMPT_DIGEST = "remote_prompt_digest"
PROMPT_DIGEST_LENGTH_MAX = 128
PROMPT_TOKENS_MAX = (1 << 31) - 1
PREFILLERS_MAX = 8
SEEN_LENGTH_MAX = 80
ENGINE_ID_LENGTH_MAX = 256
"""As in the protocol."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """The request asks for no transfer."""


@dataclass(frozen=True, slots=True)
class Send:
    """The request's KV is sent to the decoder that asks for the transfer."""

    transfer: str
    base: str
    """The id in the response: that of a list's first prompt. The decoder adds the index of each prompt."""


@dataclass(frozen=True, slots=True)
class Receive:
    """The request's KV is fetched from a prefiller."""

    transfer: str
    messengers: Messengers
    engine_id: str
    decoder_first: bool
    other_prefillers: tuple[Messengers, ...] = ()
    """Decoder first only: the prefillers to ask if the KV does not come from the first one."""
    prompt_tokens: int = 0
    """How many tokens the prefiller's prompt has, with which this one begins; 0: both are the same."""
    prompt_digest: str = ""
    """What the prefiller has computed, by its answer: of the prompt, and of its weights then. "" if unknown."""


@dataclass(frozen=True, slots=True)
class Sibling:
    """A further choice of a request with ``n`` > 1. The first choice's KV is transferred once and serves all choices.

    So the two legs need not have the same ``n``.
    """

    first_choice: str
    """The request id of the first choice."""
    sends: bool
    base: str
    """That of the first choice."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request cannot be served; ``reason`` is one sentence for its sender."""

    reason: str
    unfit: Receive | None = None
    """What it would have fetched, if that is known."""


Ask = Nothing | Send | Receive | Sibling | Refused

NOTHING = Nothing()


@dataclass(frozen=True, slots=True)
class Side:
    """The properties of this engine that requests must fit."""

    role: Role
    tp_size: int
    pp_size: int
    messenger_count: int
    ids_have_suffix: bool = True
    """Whether this engine appends random digits to the ids of its requests."""
    is_one_of_several: bool = False
    """Whether parts of one HTTP request may be with other data-parallel ranks."""
    has_draft_kv: bool = False
    """Whether pages also hold a draft's KV, which may depend on the token that follows."""
    gets_encoded_media: bool = False
    """Whether another engine encodes images, videos and sounds for this one (vLLM's ``ec_transfer_config``)."""
    recomputes: bool = False
    """Whether the engine computes what could not be loaded (``kv_load_failure_policy``), and so ends no request."""
    keeps_experts: bool = False
    """Whether the engine keeps the experts of each cached token, which no transfer brings, and ends without them."""


def read(params: object, request_id: str, side: Side) -> Ask:
    """What the request asks for; Refused if it is invalid. Never raises."""
    if params is None:
        return NOTHING
    if not isinstance(params, Mapping):
        return _refused("", params, "an object")
    for flag in ("do_remote_prefill", "do_remote_decode"):
        if not isinstance(params.get(flag), bool | None):
            return _refused(flag, params[flag], "true or false")
    send, receive = bool(params.get("do_remote_decode")), bool(params.get("do_remote_prefill"))
    if not send and not receive:
        return NOTHING
    if send and receive:
        return Refused(
            "kv_transfer_params ask for both do_remote_prefill and do_remote_decode, expected one of them: send"
            " do_remote_decode to the prefiller and do_remote_prefill to the decoder"
        )
    wanted = "decoder" if receive else "prefiller"
    if side.role not in (wanted, "both"):
        return Refused(
            f"kv_transfer_params.{'do_remote_prefill' if receive else 'do_remote_decode'} is true and this engine is a"
            f" {side.role}, expected a {wanted}: route the request to one, or start this engine with kv_role"
            f" {'kv_consumer' if receive else 'kv_producer'}"
        )
    transfer = params.get("transfer_id")
    if transfer is not None and not is_transfer_id(transfer):
        return _refused("transfer_id", transfer, f"a string of 1 to {TRANSFER_ID_LENGTH_MAX} characters, or nothing")
    name = read_name(request_id, has_suffix=side.ids_have_suffix)
    if name.response_turn:
        return NOTHING  # no other engine has the output of the tool
    by_prompt = transfer is None and name.response_turn is not None
    base = BY_PROMPT if by_prompt else transfer or transfer_of(name.shared, 0)
    ask: Ask = Send(_item_of(base, name.item), base)
    if receive:
        # No other engine knows a decoder-first transfer yet: its id may keep the part that is unique to this side.
        decoder_first = params.get("prefiller") is not None
        own = transfer_of(transfer, name.item) if transfer else transfer_of(request_id, 0)
        ask = _refused_part(params, name) or _read_receive(
            params, own if decoder_first else _item_of(base, name.item), side
        )
        ask = _without_experts(ask) if side.keeps_experts else ask
    if name.choice > 0 and not isinstance(ask, Refused):
        return Sibling(name.first_choice, send, base)
    return _with_beginning(params, name, ask) if isinstance(ask, Receive) else ask


def asking_nothing(params: object) -> dict[str, Any]:
    """A copy that asks for no transfer any more: requests that were split from one share the object."""
    return {**(params if isinstance(params, dict) else {}), "do_remote_prefill": False, "do_remote_decode": False}


def _with_beginning(params: Mapping[str, Any], name: RequestName, ask: Receive) -> Ask:
    """With the prefiller's prompt, which its answer names by length and digest: for a list, the first prompt."""
    tokens, digest = params.get(PROMPT_TOKENS), params.get(PROMPT_DIGEST)
    if name.item:
        return ask
    if digest is not None:
        if not isinstance(digest, str) or not digest.isprintable() or len(digest) > PROMPT_DIGEST_LENGTH_MAX:
            return _refused(PROMPT_DIGEST, digest, "a string, as the prefiller's answer gives it")
        ask = replace(ask, prompt_digest=digest)
    if tokens is None:
        return ask
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 < tokens <= PROMPT_TOKENS_MAX:
        return _refused(
            PROMPT_TOKENS, tokens, f"an integer from 1 to {PROMPT_TOKENS_MAX}, as the prefiller's answer gives it"
        )
    return replace(ask, prompt_tokens=tokens)


def _refused_part(params: Mapping[str, Any], name: RequestName) -> Refused | None:
    """Refuses what the answer of one data-parallel rank does not cover: no grant would ever come for its pages.

    The answer to a list of prompts is that of the first one, the answer to several choices that of any of them. The KV
    is with the rank of the prompt's first choice.
    """
    if params.get("of_data_parallel_rank") is not True or not (params.get("of_choice") or name.item):
        return None
    part = f"prompt {name.item + 1} of a list" if name.item else "a request with n > 1"
    return Refused(
        f"kv_transfer_params come from one of several data-parallel ranks of the prefiller and this is {part}, whose KV"
        " another rank may have, expected one prompt with n of 1 in each request to such a prefiller: send the prompts"
        " one by one, or start the prefiller's ranks as servers of their own (--data-parallel-external-lb)"
    )


def _without_experts(ask: Ask) -> Ask:
    if not isinstance(ask, Receive):
        return ask
    return Refused(
        "kv_transfer_params.do_remote_prefill is true and this engine returns routed experts, which no transfer brings,"
        " expected an engine without: start it without --enable-return-routed-experts, or send it whole requests",
        ask,
    )


def _item_of(base: str, item: int) -> str:
    return transfer_of(base, item) if base != BY_PROMPT else BY_PROMPT


def rejected_transfers(params: Mapping[str, Any], request_id: str) -> tuple[str, ...]:
    """The possible transfer ids of a request that never reached the engine; for a list, those of the first prompt.

    The request's own id is not known. A router that sends both legs at once gives its part of it in
    ``remote_request_id``.
    """
    if is_transfer_id(transfer := params.get("transfer_id")):
        return (str(transfer),)
    names = [name for name in (params.get("remote_request_id"), request_id) if isinstance(name, str) and name]
    return tuple(dict.fromkeys(transfer_of(base, 0) for name in names for base in possible_names(name)))


def _read_receive(params: Mapping[str, Any], transfer: str, side: Side) -> Ask:
    mode = params.get("transfer_mode")
    if mode is not None and mode != "push":
        return _refused("transfer_mode", mode, "'push'")
    prefiller = params.get("prefiller")
    if prefiller is not None:
        return _read_decoder_first(params, prefiller, transfer, side)
    host, port, engine_id = (params.get(f"remote_{name}") for name in ("host", "port", "engine_id"))
    if not isinstance(host, str) or not ("," in host or is_host(host)):
        return _refused("remote_host", host, "the prefiller's host, as its own answer gives it")
    if not _is_port(port):
        return _refused("remote_port", port, f"an integer from 1 to {PORT_MAX}, as the prefiller's answer gives it")
    if not _is_engine_id(engine_id):
        return _refused("remote_engine_id", engine_id, "a string, as the prefiller's answer gives it")
    messengers = read_list(host) if "," in host else (Address(host, port),)
    if not messengers:
        return _refused("remote_host", host, "a host, or 'host:port' of each messenger between commas")
    return Receive(transfer, messengers, engine_id or "", decoder_first=False)


def _read_decoder_first(params: Mapping[str, Any], prefiller: object, transfer: str, side: Side) -> Ask:
    if params.get("remote_host") is not None:
        return Refused(
            "kv_transfer_params name both 'prefiller' and 'remote_host', expected one of them: 'prefiller' when the"
            " request goes to the decoder only, 'remote_host' and 'remote_port' when it goes to both"
        )
    texts = list(prefiller) if isinstance(prefiller, list | tuple) else [prefiller]
    named = [read_list(text) if isinstance(text, str) else () for text in texts]
    if not (all(named) and 0 < len(named) <= PREFILLERS_MAX):
        return _refused(
            "prefiller",
            prefiller,
            f"'host:port' with a port from 1 to {PORT_MAX}, of each of its messengers between commas, or a list of 1 to"
            f" {PREFILLERS_MAX} such strings",
        )
    if len(named) > 1 and side.messenger_count > 1:
        return Refused(
            f"kv_transfer_params.prefiller names {len(named)} prefillers and this decoder has {side.messenger_count}"
            " messengers, which could come to get their KV from different ones: name one"
        )
    return Receive(transfer, named[0], "", decoder_first=True, other_prefillers=tuple(named[1:]))


def _is_engine_id(value: object) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= ENGINE_ID_LENGTH_MAX and value.isprintable())


def _is_port(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= PORT_MAX


def _refused(name: str, value: object, expected: str) -> Refused:
    field = f"kv_transfer_params.{name}" if name else "kv_transfer_params"
    return Refused(f"{field} is {_seen(value)}, expected {expected}")


def _seen(value: object) -> str:
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or nested as deep
        text = f"a {type(value).__name__}"
    return text if len(text) <= SEEN_LENGTH_MAX else text[: SEEN_LENGTH_MAX - 3] + "..."
