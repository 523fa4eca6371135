"""Reports the prices of transfers to the messenger, which shows them to routers."""

from __future__ import annotations

import time
from collections.abc import Callable

from kv_connector.configuration.messenger_addresses import Messengers
from kv_connector.pulls.prefill_rate import PrefillRate
from kv_connector.pulls.transfer_price import TransferPrices
from kv_connector.runtime.commands import Prices, SourcePrice

INTERVAL_SECONDS = 1.0
"""What is new waits this long at most, while the engine runs."""
REPORTED_MAX = 32
"""The engines used last; a report is computed by the engine's own thread."""
VALUE_MAX = 2**53
"""No time is beyond this, whatever was measured: numbers stay exact in every reader."""
TOKENS_MAX = 2**31 - 1
NAME_LENGTH_MAX = 300
"""The messenger takes no longer name of an engine."""


class PriceReports:
    """Used by one thread."""

    def __init__(
        self, transfers: TransferPrices, rate: PrefillRate, now_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._transfers = transfers
        self._rate = rate
        self._now_seconds = now_seconds
        self._due_at_seconds = 0.0
        self._reported: tuple[int, float | None] = 0, None

    def due(self) -> Prices | None:
        """The prices, if there is something new and the last report was long enough ago.

        None as long as no request has named another engine: most engines have nothing to report.
        """
        now_seconds = self._now_seconds()
        if now_seconds < self._due_at_seconds or not self._transfers.change_count:
            return None
        new = self._transfers.change_count, self._rate.seconds_of(1)
        if new == self._reported and not self._transfers.is_moving():
            return None
        self._reported, self._due_at_seconds = new, now_seconds + INTERVAL_SECONDS
        priced = [price for source in self._last_used() if (price := self._price(source)) is not None]
        return Prices(priced, None if new[1] is None else _number(new[1], 1e12))

    def _last_used(self) -> list[Messengers]:
        """Each once by the name that it is shown by: a request may list more or fewer of an engine's messengers."""
        by_name: dict[str, Messengers] = {}
        for source in filter(self._transfers.has_answered, self._transfers.sources()):
            by_name.pop(str(source[0]), None)
            by_name[str(source[0])] = source
        return [source for name, source in by_name.items() if name.isascii() and len(name) <= NAME_LENGTH_MAX][
            -REPORTED_MAX:
        ]

    def _price(self, source: Messengers) -> SourcePrice | None:
        fit = self._transfers.fit(source)
        price = self._transfers.price(source, 0, fit)
        if price is None or fit is None:
            return None
        known = self._transfers.known(source)
        return SourcePrice(
            source=str(source[0]),
            dead_millis=_number(self._transfers.dead_seconds(source), 1e3),
            open_micros=_number(price.open_seconds, 1e6),
            answer_micros=_number(price.answer_seconds, 1e6),
            queue_micros=_number(price.queue_seconds, 1e6),
            fixed_micros=_number(fit.fixed_seconds, 1e6),
            picos_per_token=_number(fit.seconds_per_token, 1e12),
            tokens_min=0 if known is None else min(known.tokens_min, TOKENS_MAX),
            tokens_max=0 if known is None else min(known.tokens_max, TOKENS_MAX),
            known_millis=0 if known is None else _number(known.seconds, 1e3),
        )


def _number(seconds: float, parts: float) -> int:
    return min(VALUE_MAX, max(0, round(seconds * parts)))
