"""Up to which token a prefiller computes and sends a prompt, and where its decoder continues. Pure.

The same rule as ``LastTokenRule`` in ``spec-decode``, which gives the reasons; tests compare both with the cases of
``spec-decode/src/test/resources/last-token-rule.json``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LastTokenRule:
    """How the two sides divide the end of a prompt, by model and draft; raises ValueError if that is impossible."""

    state: bool = False
    """Whether some layers keep one state for all tokens, which cannot be rolled back to an earlier token."""
    draft_modules: int = 0
    """The number of the draft's modules with KV; each reads one token further ahead than the previous one."""
    leaves_out: bool = False
    """Whether the prefiller's engine does not get the last token; always so with a state."""

    def __post_init__(self) -> None:
        if self.draft_modules < 0:
            raise ValueError(f"a draft has {self.draft_modules} modules, expected 0 or more")
        if self.state and not self.leaves_out:
            raise ValueError(
                "the model keeps a state and the prefiller computes the prompt's last token, expected that it leaves it"
                " out: the decoder would put it into the state again"
            )
        if self.state and self.draft_modules:
            raise ValueError(
                f"the model keeps a state and its draft has {self.draft_modules} modules with KV, expected none: a"
                " state cannot be taken back to where the draft's KV is final"
            )

    def sent_tokens(self, prompt_tokens: int) -> int:
        """The number of tokens, from the first one, that the prefiller computes and sends; at least one."""
        _require(prompt_tokens)
        return max(1, prompt_tokens - 1) if self.leaves_out else prompt_tokens

    def resume_token(self, prompt_tokens: int) -> int:
        """The first token that the decoder computes itself; 0 = it computes all, and nothing need be sent."""
        _require(prompt_tokens)
        known = prompt_tokens - 1 if self.leaves_out else prompt_tokens
        return max(0, min(prompt_tokens - 1, known - self.draft_modules))


FULL_ATTENTION = LastTokenRule()
"""The prefiller computes and sends all tokens, and the decoder computes the last one again."""

STATE = LastTokenRule(state=True, leaves_out=True)
"""The prefiller leaves out the last token, which the decoder computes."""


def _require(prompt_tokens: int) -> None:
    if prompt_tokens < 1:
        raise ValueError(f"a prompt has {prompt_tokens} tokens, expected at least 1")
