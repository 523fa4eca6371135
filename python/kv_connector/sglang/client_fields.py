"""Checks what a client of SGLang says of its request, where it enters, and what the server that it names answers. Pure.

SGLang passes a request's fields on as the client sent them: a room may be a list, a host any text. They reach the
scheduler's thread, where an exception ends the server, and they are keys there. The host may be any server,
and SGLang computes with the numbers of its answer.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TypeVar

from kv_connector.configuration.host_addresses import PORT_MAX, port_of

_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")

ROOM_MAX = (1 << 64) - 1
"""SGLang writes the room into a word of 64 bits without a sign."""
NO_ROOM = 0
"""SGLang's value of a room that is not written yet: a request with this room would wait for ever."""
NO_HOST = ""
"""Stands for a host that is missing or no text; no address has it."""
HOST_LENGTH_MAX = 255
RANKS_MAX = 4096
"""Of one data-parallel rank of a prefiller: SGLang lists them all."""
SEEN_LENGTH_MAX = 80
SERVERS_REMEMBERED_MAX = 4096
"""Of so many servers something may be remembered: each may be one that a client made up."""


def room_fault(room: object) -> str:
    """Why this is no room, in one sentence; "" if it is one."""
    if type(room) is int and 1 <= room <= ROOM_MAX:
        return ""
    return f"bootstrap_room is {_seen(room)}, expected an integer from 1 to {ROOM_MAX}: send one, equal to both sides"


def address_fault(bootstrap_addr: object) -> str:
    """Why this names no bootstrap server, in one sentence; "" if it does. SGLang has joined host and port."""
    host, _, port = bootstrap_addr.rpartition(":") if isinstance(bootstrap_addr, str) else ("", "", "")
    if not _is_host(host):
        return (
            f"bootstrap_host and bootstrap_port are {_seen(bootstrap_addr)}, expected the prefiller's host, of at most"
            f" {HOST_LENGTH_MAX} letters, digits and '.-_:[]%', and its port: send those of its bootstrap server"
        )
    if not port_of(port):
        return (
            f"bootstrap_port in {_seen(bootstrap_addr)} is {_seen(port)}, expected an integer from 1 to {PORT_MAX}:"
            " send the prefiller's --disaggregation-bootstrap-port"
        )
    return ""


def dp_rank_fault(rank: object, count: int = PORT_MAX + 1) -> str:
    """Why this is no data-parallel rank of ``count``, in one sentence; "" if it may be one."""
    if type(rank) is int and 0 <= rank < count:
        return ""
    those = f"0 to {count - 1}, as its --dp-size is {count}" if count <= PORT_MAX else "at least 0"
    return f"the prefiller's data-parallel rank is {_seen(rank)}, expected an integer of {those}: leave it out"


def other_rank_fault(named: object, count: int, own: int) -> str:
    """Why a prefiller's rank ``own`` of ``count`` is not the one that decoders ask, in one sentence; "" if it is."""
    if named is None or named == own:
        return ""
    return dp_rank_fault(named, count) or (
        f"the prefiller's data-parallel rank is {_seen(named)}, where decoders look for the request, and it came to"
        f" rank {own}: send routed_dp_rank {_seen(named)} too, or leave both out"
    )


def prompt_fault(token_count: int) -> str:
    """Why a prompt of so many tokens is not handed over, in one sentence; "" if it is."""
    return "" if token_count >= 1 else "the prompt has 0 tokens, expected at least 1: send a prompt that is not empty"


def vocabulary_fault(least: int, most: int, token_count: int) -> str:
    """Why a model of so many tokens cannot compute tokens ``least`` to ``most``, in one sentence; "" if it can."""
    if least >= 0 and most < token_count:
        return ""
    return (
        f"input_ids has the token {_seen(least if least < 0 else most)}, expected integers from 0 to {token_count - 1},"
        " the model's vocabulary: SGLang ends at another one, send tokens of this model's tokenizer"
    )


def logprobs_fault(asked: object, most: int) -> str:
    """Why SGLang cannot hand over so many alternatives to the first token, in one sentence; "" if it can."""
    if isinstance(asked, int) and asked <= most:
        return ""
    return (
        f"top_logprobs_num is {_seen(asked)}, expected an integer of at most {most}, which SGLang's row for the first"
        " token holds: ask for fewer"
    )


def logprob_start_fault(asked: object) -> str:
    """Why logprobs of a prompt cannot be given from there on, in one sentence; "" if they can, or are not asked for."""
    if asked is None or (isinstance(asked, int) and asked >= -1):
        return ""
    return (
        f"logprob_start_len is {_seen(asked)}, expected an integer of at least 0, or -1 for none of the prompt: SGLang"
        " ends at another one"
    )


def samples_fault(asked: object) -> str:
    """Why so many samples of one request (``n``) cannot be handed over, in one sentence; "" if they can."""
    if isinstance(asked, int | float) and not asked > 1:
        return ""
    return (
        f"n is {_seen(asked)}, expected 1, since SGLang sends all samples of a request under its one room: send the"
        " request so many times, each with a room of its own"
    )


def topology_fault(dp_size: int, attn_tp_size: int, attn_cp_size: int, pp_size: int) -> str:
    """Why these are no sizes of a prefiller, in one sentence; "" if they may be."""
    sizes = (dp_size, attn_tp_size, attn_cp_size, pp_size)
    if min(sizes) >= 1 and dp_size <= PORT_MAX and attn_tp_size * attn_cp_size * pp_size <= RANKS_MAX:
        return ""
    seen = "DP {}, attention TP {}, attention CP {} and PP {}".format(*map(_seen, sizes))
    return (
        f"it says that it has {seen}, expected sizes of at least 1 and at most {RANKS_MAX} ranks: check that"
        " bootstrap_host and bootstrap_port name a prefiller"
    )


def without_answered(questions: dict[_Key, Future[_Answer]]) -> dict[_Key, Future[_Answer]]:
    """The same questions to servers; once there are many, without those whose answers are there and were not read."""
    if len(questions) < SERVERS_REMEMBERED_MAX:
        return questions
    return {name: question for name, question in questions.items() if not question.done()}


def is_address(host: str, port: int) -> bool:
    """Whether a rank may listen there."""
    return _is_host(host) and 1 <= port <= PORT_MAX


def _is_host(host: str) -> bool:
    allowed = host.isascii() and all(each.isalnum() or each in ".-_:[]%" for each in host)
    return 0 < len(host) <= HOST_LENGTH_MAX and allowed


def _seen(value: object) -> str:
    try:
        text = ascii(value) if isinstance(value, str | bytes | int | float | None) else type(value).__name__
    except ValueError:  # it has thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= SEEN_LENGTH_MAX else f"{text[: SEEN_LENGTH_MAX - 3]}..."
