"""A decoder's prompt that begins with the prefiller's: only the KV of that beginning is fetched. Pure.

The prefiller's answer names how many tokens its prompt has. What is behind them in the decoder's prompt, such as the
first token that the prefiller has generated, or the next message of a chat, is computed by the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kv_connector.vllm.kv_groups import KvGroup, loaded_of_beginning, loaded_tokens
from kv_connector.vllm.misfits import ends_in_media, stands_for_rejected
from kv_connector.vllm.transfer_params import PROMPT_TOKENS, Ask, Receive, Refused, Send


class Beginning:
    """The first tokens of a request as its whole prompt; everything else is the request's own."""

    __slots__ = ("_request", "num_prompt_tokens")

    def __init__(self, request: Any, tokens: int) -> None:
        self._request = request
        self.num_prompt_tokens = tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        """A copy."""
        return list(self._request.prompt_token_ids[: self.num_prompt_tokens])

    @property
    def mm_features(self) -> list[Any]:
        """Those that lie in it."""
        features = getattr(self._request, "mm_features", None) or ()
        return [each for each in features if int(each.mm_position.offset) < self.num_prompt_tokens]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def part_of(request: Any, ask: object) -> Any:
    """What is fetched of the request: a Beginning, or the request itself if that is its whole prompt."""
    tokens = ask.prompt_tokens if isinstance(ask, Receive) else 0
    return Beginning(request, tokens) if 0 < tokens < request.num_prompt_tokens else request


def loaded(
    groups: Sequence[KvGroup],
    request: Any,
    ask: Receive | Refused,
    wants_shared_token: Callable[[Any, Receive], bool],
    *,
    has_drafts: bool,
) -> int:
    """The number of the prompt's tokens that are loaded, those in this engine's cache included; 0: none.

    ``wants_shared_token``: whether the last token of a beginning is to be computed here too, to compare both.
    """
    begun = part_of(request, ask)
    if begun is request or isinstance(ask, Refused):
        return loaded_tokens(groups, request.num_prompt_tokens)
    proves = wants_shared_token(begun, ask)
    return loaded_of_beginning(groups, begun.num_prompt_tokens, proves=proves, has_drafts=has_drafts)


def fitting(ask: Ask, request: Any, groups: Sequence[KvGroup], *, is_cut: bool = False) -> Ask:
    """The ask, or Refused if what it names is no beginning of the request's prompt, or the prompt cannot be cut.

    ``is_cut``: whether the prefiller has cut it already.
    """
    if not isinstance(ask, Receive | Send) or stands_for_rejected(request):
        return ask
    asked = ask if isinstance(ask, Receive) else None
    if not is_cut and (reason := ends_in_media(part_of(request, ask), groups)):
        return Refused(reason, asked)
    return ask if asked is None or not asked.prompt_tokens else _beginning(asked, request, groups)


def _beginning(ask: Receive, request: Any, groups: Sequence[KvGroup]) -> Receive | Refused:
    tokens, has_tokens = ask.prompt_tokens, int(request.num_prompt_tokens)
    if tokens == has_tokens:
        return ask
    fault = ""
    if tokens > has_tokens:
        fault = f"this prompt has {has_tokens} tokens, expected as many or more"
    elif any(group.both_ways for group in groups):
        fault = f"tokens of this model attend to later ones of their prompt, here of {has_tokens}, expected as many"
    elif request.prompt_token_ids is None or getattr(request, "prompt_embeds", None) is not None:
        fault = f"this prompt of {has_tokens} is given by embeddings, expected one by token ids"
    elif any(_is_cut(each, tokens) for each in getattr(request, "mm_features", None) or ()):
        fault = f"an image or sound of this prompt of {has_tokens} lies on both sides of its end, expected on one"
    if not fault:
        return ask
    beyond = "" if any(group.both_ways for group in groups) else ", or one that begins with it"
    return Refused(
        f"kv_transfer_params.{PROMPT_TOKENS} is {tokens} and {fault}: send the decoder the prefiller's prompt{beyond}",
        ask,
    )


def _is_cut(feature: Any, tokens: int) -> bool:
    first = int(feature.mm_position.offset)
    return first < tokens < first + int(feature.mm_position.length)
