"""The chunks of prompts whose KV is sent: which blocks hold the tokens that a forward pass computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kv_connector.runtime.commands import Announce, PrefillOutcome
from kv_connector.vllm.kv_groups import NULL_BLOCK, KvGroup, last_token_rule
from kv_connector.vllm.metadata import Chunk
from kv_connector.vllm.prompts import computed_with, leave_out_last_token, prompt_of
from kv_connector.vllm.request_name import or_of_prompt
from kv_connector.vllm.request_numbers import RequestNumbers
from kv_connector.vllm.scheduled import placed
from kv_connector.vllm.transfer_params import Send
from kv_connector.vllm.window_blocks import WindowBlocks

FINISHED = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION")
"""The names of vLLM's statuses of requests that were answered to their end."""


class PrefillName(NamedTuple):
    """What a decoder asks for."""

    transfer: str
    base: str
    digest: str
    computed_with: str
    """Names the engine's weights, and the request's adapter."""


@dataclass(slots=True)
class Prefill:
    """The state of a request whose KV is sent."""

    request: Any
    """The engine's own object."""
    ask: Send
    prompt: Any
    """What its digest is of: the whole prompt, of which the engine's object may lack the last token."""
    name: PrefillName
    prompt_tokens: int
    """Those that are sent."""
    named_tokens: int
    """Those of the whole prompt."""
    other_names: dict[str, tuple[str, PrefillName]] = field(default_factory=dict)
    """The numbers and names by which it is announced besides, by what it would be computed with (``PrefillNames``)."""
    reported: bool = False
    """Whether the workers know it, from an announcement or a chunk."""
    granted: set[str] = field(default_factory=set)
    """Those of its numbers for which a decoder has pages, and waits."""
    given_up: bool = False
    """Whether it continues in the engine but is not sent any further."""
    is_outdated: bool = False
    """Whether it has blocks, and is named by weights that the engine has no longer."""
    has_blocks: bool = False
    """Whether the engine has given it blocks, of which it may compute or load the KV."""
    tables: list[list[int]] = field(default_factory=list)
    """Its blocks in each KV cache group, as allocated; the engine may have freed those before a window."""
    sent_tokens: int = 0
    """The workers have got chunks of tokens ``[0, sent_tokens)``; 0 before the first chunk."""

    def extend(self, group_blocks: Sequence[Sequence[int]]) -> None:
        """Appends newly allocated blocks."""
        if not self.tables:
            self.tables = [[] for _ in group_blocks]
        for table, blocks in zip(self.tables, group_blocks, strict=False):  # empty if no block was allocated
            table.extend(blocks)

    def named_now(self, digest_of: Callable[[Any], str]) -> str:
        """What names the engine's weights, and the request's adapter, now."""
        return computed_with(self.request, digest_of)

    def name_of_now(self, digest_of: Callable[[Any], str]) -> PrefillName:
        """The name that the prompt would get if it were queued now."""
        return _name(self.prompt, self.ask, digest_of)

    @property
    def is_unread(self) -> bool:
        """Whether it has blocks of which the workers know none: they are being loaded, or are loaded, for it."""
        return self.has_blocks and not self.tables

    def forget_progress(self) -> None:
        """Resets it after it has lost its blocks, or before the workers get all of them anew."""
        self.tables.clear()
        self.sent_tokens = 0

    def outcome(self, status: str) -> PrefillOutcome:
        """How it has ended, by the name of the request's last status in the engine."""
        if status in FINISHED and self.sent_tokens == self.prompt_tokens:
            return "finished"
        return "aborted" if status == "FINISHED_ABORTED" else "failed"


def begin_prefill(request: Any, ask: Send, digest_of: Callable[[Any], str]) -> Prefill:
    """The state of a request that was just queued."""
    tokens, prompt = int(request.num_prompt_tokens), prompt_of(request)
    return Prefill(request, ask, prompt, _name(prompt, ask, digest_of), tokens, tokens)


def queue_prefill(request: Any, ask: Send, digest_of: Callable[[Any], str], groups: Sequence[KvGroup]) -> Prefill:
    """The same, of a request that loses its last token here if the model's groups need that."""
    prefill, rule = begin_prefill(request, ask, digest_of), last_token_rule(groups)
    if rule.leaves_out:
        prefill.prompt_tokens = leave_out_last_token(request, rule)
    return prefill


def _name(prompt: Any, ask: Send, digest_of: Callable[[Any], str]) -> PrefillName:
    digest = digest_of(prompt)
    transfer, base = or_of_prompt(ask.transfer, digest), or_of_prompt(ask.base, digest)
    return PrefillName(transfer, base, digest, computed_with(prompt, digest_of))


def announced_again(open_ones: Mapping[str, Prefill], numbers: RequestNumbers) -> list[Announce]:
    """For messengers that know nothing of prefills that are queued."""
    return [
        Announce(number, name.transfer, name.digest)
        for request_id, prefill in open_ones.items()
        if not prefill.given_up
        for number, name in ((numbers.of(request_id), prefill.name), *prefill.other_names.values())
    ]


def report(open_ones: Mapping[str, Prefill], numbers: RequestNumbers, announces: Iterable[Announce]) -> None:
    """The workers get these announcements with the next step."""
    for announce in announces:
        if (prefill := open_ones.get(numbers.name(announce.request))) is not None:
            prefill.reported = True


class PrefillChunks:
    """Plans the chunks of prefills, and keeps the blocks of a prompt's last window until they are sent.

    Used by the engine core's thread only.
    """

    def __init__(self, groups: Sequence[KvGroup], window_blocks: WindowBlocks, numbers: RequestNumbers) -> None:
        self._groups = groups
        self._window_blocks = window_blocks
        self._numbers = numbers

    def plan(
        self,
        request_id: str,
        prefill: Prefill,
        group_blocks: Sequence[Sequence[int]],
        whole_table: bool,
        first_token: int,
        end_token: int,
    ) -> Chunk | None:
        """The chunk of a forward pass that computes tokens ``[first_token, end_token)``; None if all is planned.

        ``group_blocks`` are the blocks allocated for the pass in each KV cache group, or with ``whole_table`` all of
        the request's. Raises ValueError if they do not continue the previous chunk.
        """
        if whole_table:
            prefill.forget_progress()
        prefill.extend(group_blocks)
        end_token = min(end_token, prefill.prompt_tokens)
        if end_token <= prefill.sent_tokens:
            return None
        begins = prefill.sent_tokens == 0
        if not begins and first_token != prefill.sent_tokens:
            raise ValueError(f"the chunk starts at token {first_token}, expected {prefill.sent_tokens}")
        groups = [
            placed(group, table, prefill.sent_tokens, end_token)
            for group, table in zip(self._groups, prefill.tables, strict=True)
        ]
        if end_token == prefill.prompt_tokens:
            self._keep_windows(request_id, prefill)
        prefill.sent_tokens = end_token
        prefill.reported = True
        # Assumed of vLLM: it commits a block to the prefix cache when it schedules the pass that will fill it. So a hit
        # may name blocks that are still empty, which another request fills in this pass or in one that still runs. The
        # first chunk therefore begins at token 0: a layer's pages are sent when the pass has written that layer.
        return Chunk(
            request=self._numbers.of(request_id),
            transfer=prefill.name.transfer,
            prompt_tokens=prefill.prompt_tokens,
            cached_tokens=0,
            first_token=0 if begins else first_token,
            end_token=end_token,
            groups=groups,
            prompt_digest=prefill.name.digest,
        )

    def _keep_windows(self, request_id: str, prefill: Prefill) -> None:
        """Keeps the blocks of the prompt's last window for sending: the engine's window moves on as it decodes."""
        windows = []
        for group, table in zip(self._groups, prefill.tables, strict=True):
            if group.window_tokens:
                needed = table[group.needed(0, prefill.prompt_tokens)]
                if NULL_BLOCK in needed:
                    raise ValueError(f"blocks {needed} hold the last window, expected none that is dropped")
                windows.extend(needed)
        self._window_blocks.keep(request_id, windows)

    def restart(self, prefill: Prefill) -> None:
        """Prepares it for its prompt to be computed again.

        Assumed of vLLM: decoded tokens are in the prefix cache too. A hit on them would restore the last window of the
        decoded tokens instead of the prompt's last window, which must still be sent.
        """
        prefill.request.skip_reading_prefix_cache |= any(group.window_tokens for group in self._groups)
        prefill.forget_progress()
        prefill.has_blocks = prefill.is_outdated = False
        prefill.granted.clear()
