"""Which processes are at the addresses of prefillers' messengers, by what the workers report of their sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kv_connector.configuration.messenger_addresses import Messengers


class PrefillerProcesses:
    """Knows the addresses with which a session was open at some time. Used by the engine core's thread only."""

    def __init__(self) -> None:
        self._incarnations: dict[str, str] = {}
        """By address, as last connected."""
        self._away: set[str] = set()
        """Of these addresses, those without a session."""

    def reported(self, connected: Mapping[str, str]) -> Sequence[str]:
        """``connected`` is as in ``WorkerNews``; returns the addresses at which there is another process now."""
        others = []
        for address, incarnation in connected.items():
            if not incarnation:
                self._away |= {address} & self._incarnations.keys()
                continue
            self._away.discard(address)
            before, self._incarnations[address] = self._incarnations.get(address), incarnation
            if before not in (None, incarnation):
                others.append(address)
        return others

    def may_be_others(self, messengers: Messengers) -> bool:
        """Whether the next session with one of them may be with another process than the last one."""
        return any(str(each) in self._away for each in messengers)
