"""What questions that lead to nothing may cost a prompt."""

from __future__ import annotations

from collections import OrderedDict

from kv_connector.configuration.messenger_addresses import Messengers

LOST_SHARE = 0.05
"""What waiting for answers in vain may add to the time in which prompts are computed."""
SAVED_SECONDS_MAX = 1.0
"""How much of what pulls have saved may be lost again in a row: engines change."""
ACCOUNTS_MAX = 1024
"""Requests name the engines: the accounts used longest ago are forgotten."""


class AskBudget:
    """An account in seconds for each engine that is asked and each size of question. Used by one thread.

    What another engine holds beyond the asker's own cache is known only once it answers. So all times are booked: what
    pulls save is added, waits are taken off, and while an account is overdrawn no answer is waited for. A share of the
    time in which tokens are computed brings it back. Sizes are powers of two: a conversation whose history is in the
    asker's cache lacks an answer and a prompt, and another one all.
    """

    def __init__(self) -> None:
        self._seconds: OrderedDict[tuple[Messengers, int], float] = OrderedDict()

    def allows(self, source: Messengers, tokens: int) -> bool:
        """Whether a prompt that lacks this many tokens may wait for the engine's answer."""
        return self._seconds.get((source, tokens.bit_length()), 0.0) >= 0

    def book(
        self, source: Messengers, tokens: int, *, waited_seconds: float, saved_seconds: float, computed_seconds: float
    ) -> None:
        """The outcome for a prompt that lacked this many tokens.

        :param waited_seconds: for the answer and for what was fetched
        :param saved_seconds: in which what was fetched would have been computed
        :param computed_seconds: in which the others are computed
        """
        account = source, tokens.bit_length()
        seconds = self._seconds.get(account, 0.0) + saved_seconds - waited_seconds + LOST_SHARE * computed_seconds
        self._seconds[account] = min(SAVED_SECONDS_MAX, seconds)
        self._seconds.move_to_end(account)
        if len(self._seconds) > ACCOUNTS_MAX:
            self._seconds.popitem(last=False)
