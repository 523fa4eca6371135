"""What a messenger's counters must come to when nothing is open: each thing that began has ended, in one way."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kv_connector import Messenger

BALANCES = {
    "fetches_started": ("fetches_arrived", "fetches_failed"),
    "prefills_started": ("prefills_sent", "prefills_undelivered"),
}
"""Each is the sum of the others."""


def check_balances(messengers: Iterable[Messenger], report: Callable[[str, str], None]) -> None:
    """Reports each sum that is not right, and reasons that do not come to what they are reasons of."""
    for messenger in messengers:
        stats = messenger.stats()
        counted = {name.removeprefix("kv_messenger_"): value for name, value in stats.counters.items()}
        for whole, parts in BALANCES.items():
            if counted[whole] != sum(counted[part] for part in parts):
                figures = {name: counted[name] for name in (whole, *parts)}
                report("wrong count", f"{messenger.opened.engine_id} counts {figures}")
        for name, reasons in stats.reasons.items():
            if (total := stats.counters[name]) != sum(reasons.values()):
                report("wrong count", f"{messenger.opened.engine_id} counts {total} {name}, of which {reasons}")
