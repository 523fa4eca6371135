"""Up to which token a prefiller computes and sends a prompt, and where its decoder goes on. Pure.

The same rule as `LastTokenRule` in `spec-decode`, which says why it is so; both are held to the cases of
`spec-decode/src/test/resources/last-token-rule.json`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LastTokenRule:
    """How the two sides share a prompt's end, by model and draft; raises ValueError on what no side can do."""

    state: bool = False
    """Some layers keep one value of all tokens together, which cannot be taken back to an earlier token."""
    draft_modules: int = 0
    """The draft's modules that have KV, each of which reads one token further than the one before."""
    leaves_out: bool = False
    """The prefiller's engine is not given the last token; with a state it never is."""

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
        """How many tokens, from the first one on, the prefiller computes and sends; it is given one at least."""
        _require(prompt_tokens)
        return max(1, prompt_tokens - 1) if self.leaves_out else prompt_tokens

    def resume_token(self, prompt_tokens: int) -> int:
        """The first token that the decoder computes itself; 0 = all of them, and nothing need be sent."""
        _require(prompt_tokens)
        known = prompt_tokens - 1 if self.leaves_out else prompt_tokens
        return max(0, min(prompt_tokens - 1, known - self.draft_modules))


FULL_ATTENTION = LastTokenRule()
"""All is computed and sent, and the decoder computes the last token again."""

STATE = LastTokenRule(state=True, leaves_out=True)
"""The prefiller leaves the last token to the decoder."""


def _require(prompt_tokens: int) -> None:
    if prompt_tokens < 1:
        raise ValueError(f"a prompt has {prompt_tokens} tokens, expected at least 1")
