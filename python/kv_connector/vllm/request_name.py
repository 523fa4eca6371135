"""What vLLM's request ids say of the HTTP request they come from. Pure.

One HTTP request may become several of the engine's: each prompt of a list gets ``-`` and its place appended (of
``cmpl-`` requests always, also a single one), then all get ``-`` and 8 hexadecimal digits that are made up on each
side, and the choices of ``n`` > 1 get their place and ``_`` in front. The rest is the same on both legs of a transfer,
because a router gives both the same X-Request-ID.

Assumed of vLLM: its Responses API alone does not look at that header. Unless the body says a ``request_id``, its ids
are ``resp_`` and 16 hexadecimal digits that are made up on each side, ``_``, and the place of the turn: where the model
calls a built-in tool, the server puts the result behind the prompt and generates again, with the same parameters.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

TRANSFER_ID_LENGTH_MAX = 512
"""In UTF-16 units, as the protocol counts."""

BY_PROMPT = ""
"""In place of a transfer's id: the prompt is to name it."""

_PREFIXES = ("cmpl-", "chatcmpl-", "generate-tokens-")
"""What vLLM's completions, chat completions and token-in-token-out put in front of the X-Request-ID."""
_CHOICE = re.compile(r"(\d{1,5})_(.+)", re.DOTALL)
_SIDE_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_ITEM = re.compile(r"(cmpl-.+)-(\d{1,9})", re.DOTALL)
_RESPONSE = re.compile(r"resp_[0-9a-f]{16}_(\d{1,9})")


@dataclass(frozen=True, slots=True)
class RequestName:
    """A request id, taken apart."""

    shared: str
    """What both legs have in common, for all prompts of a list: the id of the first."""
    item: int
    """The prompt's place in a list of prompts."""
    choice: int
    """Which of the choices of ``n`` > 1 it is; they have one prompt."""
    first_choice: str
    """The request id of the first one."""
    response_turn: int | None = None
    """Which turn of a response it is, where ``shared`` is made up on each side; None where both legs have it."""


def read_name(request_id: str) -> RequestName:
    """Takes a request id apart; any text is one."""
    choice, parent = 0, request_id
    if found := _CHOICE.fullmatch(request_id):
        choice, parent = int(found[1]), found[2]
    shared, item = _SIDE_SUFFIX.sub("", parent), 0
    if found := _ITEM.fullmatch(shared):
        item, shared = int(found[2]), f"{found[1]}-0"
    response = _RESPONSE.fullmatch(shared)
    return RequestName(shared, item, choice, f"0_{parent}", int(response[1]) if response else None)


def possible_names(said: str) -> tuple[str, ...]:
    """What both legs of a request may have in common, given its id on one side, or its X-Request-ID."""
    shared = read_name(said).shared
    if shared.startswith(_PREFIXES):
        return (shared,)
    return (f"cmpl-{said}-0", f"chatcmpl-{said}", f"generate-tokens-{said}", said)


def transfer_of(base: str, item: int) -> str:
    """The transfer id of one prompt of a list; ``base`` is that of the first.

    An id that no frame may carry, because a client's X-Request-ID is too long or has control characters in it, is
    replaced by its digest, which both sides make alike.
    """
    said = f"{base}#{item}" if item else base
    return said if is_transfer_id(said) else f"sha256-{hashlib.sha256(said.encode(errors='surrogatepass')).hexdigest()}"


def or_of_prompt(transfer: str, digest: str) -> str:
    """The transfer id, or one made of the prompt where both legs have nothing else in common (``BY_PROMPT``).

    Requests of one prompt then share it: the KV of each serves whichever decoder asks (docs/decisions, 0008).
    """
    return f"prompt-{digest}" if transfer == BY_PROMPT else transfer


def is_transfer_id(value: object) -> bool:
    """Whether a frame may carry this as a transfer's id."""
    if not isinstance(value, str) or not value.isprintable():
        return False
    return 0 < len(value.encode("utf-16-le")) // 2 <= TRANSFER_ID_LENGTH_MAX
