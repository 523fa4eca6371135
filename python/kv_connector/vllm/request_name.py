"""Parses vLLM's request ids, which tell what the two legs of an HTTP request have in common. Pure.

One HTTP request may become several requests of the engine. Each prompt of a list gets the suffix ``-`` and its index
(``cmpl-`` requests always, even with one prompt); then each id gets ``-`` and 8 random hexadecimal digits, which differ
between the sides, unless VLLM_DISABLE_REQUEST_ID_RANDOMIZATION is set on that side; the choices of ``n`` > 1 get their
index and ``_`` as a prefix. The rest is the same on both legs of a transfer, because a router gives both the same
X-Request-ID.

Assumed of vLLM: only its Responses API ignores that header. Unless the body has a ``request_id``, its ids are
``resp_``, 16 random hexadecimal digits, which differ between the sides, ``_``, and the index of the turn: if the model
calls a built-in tool, the server appends the result to the prompt and generates again, with the same parameters.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

TRANSFER_ID_LENGTH_MAX = 512
"""In UTF-16 code units, as in the protocol."""

BY_PROMPT = ""
"""Stands for a transfer id that is derived from the prompt's digest."""

_PREFIXES = ("cmpl-", "chatcmpl-", "generate-tokens-")
"""The prefixes that vLLM's completions, chat completions and token-in-token-out put before the X-Request-ID."""
_CHOICE = re.compile(r"(\d{1,5})_(.+)", re.DOTALL)
_SIDE_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_ITEM = re.compile(r"(cmpl-.+)-(\d{1,9})", re.DOTALL)
_RESPONSE = re.compile(r"resp_[0-9a-f]{16}_(\d{1,9})")


@dataclass(frozen=True, slots=True)
class RequestName:
    """The parts of a request id."""

    shared: str
    """The part that both legs have in common, for all prompts of a list: that of the first prompt."""
    item: int
    """The prompt's index in a list of prompts."""
    choice: int
    """The index among the choices of ``n`` > 1, which share a prompt."""
    first_choice: str
    """The request id of the first choice."""
    response_turn: int | None = None
    """The index of a response's turn if ``shared`` differs between the sides; None if both legs have the same."""


def read_name(request_id: str, *, has_suffix: bool = True) -> RequestName:
    """Parses a request id; any string is valid.

    ``has_suffix``: whether this engine has appended 8 random digits. If not, a client's own id may end like that.
    """
    choice, parent = 0, request_id
    if found := _CHOICE.fullmatch(request_id):
        choice, parent = int(found[1]), found[2]
    shared, item = _SIDE_SUFFIX.sub("", parent) if has_suffix else parent, 0
    if found := _ITEM.fullmatch(shared):
        item, shared = int(found[2]), f"{found[1]}-0"
    response = _RESPONSE.fullmatch(shared)
    return RequestName(shared, item, choice, f"0_{parent}", int(response[1]) if response else None)


def possible_names(request_id: str) -> tuple[str, ...]:
    """The possible common parts of both legs, given a request id of one side or the X-Request-ID.

    Whether the side that gave the id appends a suffix is known to that side only. It shows for a list's prompts alone,
    whose ids end in a short index otherwise.
    """
    cut, whole = (read_name(request_id, has_suffix=has_suffix).shared for has_suffix in (True, False))
    if cut.startswith("cmpl-"):
        return (cut,)
    if cut.startswith(_PREFIXES):
        return tuple(dict.fromkeys((cut, whole)))
    return (f"cmpl-{request_id}-0", f"chatcmpl-{request_id}", f"generate-tokens-{request_id}", request_id)


def transfer_of(base: str, item: int) -> str:
    """The transfer id of one prompt of a list; ``base`` is that of the first.

    An id that is not valid in a frame, because a client's X-Request-ID is too long or has control characters, is
    replaced by its digest, which is the same on both sides.
    """
    name = f"{base}#{item}" if item else base
    return name if is_transfer_id(name) else f"sha256-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()}"


def or_of_prompt(transfer: str, digest: str) -> str:
    """The transfer id, or one made from the prompt if both legs have nothing else in common (``BY_PROMPT``).

    Requests with the same prompt then share it: the KV of each serves any decoder that asks (docs/decisions, 0008).
    """
    return f"prompt-{digest}" if transfer == BY_PROMPT else transfer


def is_transfer_id(value: object) -> bool:
    """Whether a frame may carry this as a transfer's id."""
    if not isinstance(value, str) or not value.isprintable():
        return False
    return 0 < len(value.encode("utf-16-le")) // 2 <= TRANSFER_ID_LENGTH_MAX
