"""A serving engine's side of weights of several trainer ranks: each has a landing, and the engine loads all or none."""

from __future__ import annotations

import dataclasses
import logging
import os

from kv_connector.configuration.options import Options
from kv_connector.weights.decision import Decision
from kv_connector.weights.experts import named_as_in
from kv_connector.weights.host import OTHER_TYPES, WeightsHost
from kv_connector.weights.landed_name import landed_name
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.shares import Share, why_too_many


class SharesHost:
    """Takes updates for one engine, whose thread alone calls it. A sender of whole tensors has the only share.

    Each share has a counted window, a digest and a version of its own. An update that not every rank has landed, with
    the same id and version, is not loaded, and what had landed of it is given up.
    """

    def __init__(self, options: Options, logger: logging.Logger) -> None:
        """``options`` are those of ``parse_weights_options``."""
        self._options = options
        self._logger = logger
        self._hosts = [WeightsHost(options, logger)]
        self._share: Share | None = None
        """Of whose trainer the landings are; None before the first sender."""

    def dial(self, sender: str, ticket: str, share: Share, unfit: str) -> None:
        """Connects to a sender at ``HOST:PORT``; ``unfit`` says why it can write nothing here, "" if it can."""
        unfit = unfit or self._other(share)
        if unfit:
            self._hosts[0].dial(sender, ticket, share.own, unfit)
            return
        if not self._is_taken():
            self._share = share
            silent = dataclasses.replace(self._options, metrics_port=-1)
            missing = share.count - len(self._hosts)
            self._hosts = [*self._hosts[: share.count], *(WeightsHost(silent, self._logger) for _ in range(missing))]
        self._hosts[share.rank].dial(sender, ticket, share.own, "")

    def decide(self, update_id: int, served: Manifest | None, refusal: str = "", named: str = "") -> Decision:
        """Whether the engine loads this update, and from where; it calls :meth:`applied` in any case.

        Landings that were the engine's are given up by that where it loads nothing.

        ``served`` are the tensors of the engine's checkpoint, ``refusal`` is why it cannot load, and ``named`` the
        version that the load was asked for by, "" for any.
        """
        reason = ""
        taken: list[WeightsHost] = []
        for host in self._hosts:
            reason = host.decide(update_id) or refusal
            if reason:
                break
            taken.append(host)
        versions = sorted({host.version_of(update_id) for host in taken})
        if not reason and len(versions) > 1:
            reason = f"the trainer's ranks have sent versions {versions}, expected one of all: send again"
        if not reason and named and named != str(versions[0]):
            reason = f"the update is named {named}, and what has landed is version {versions[0]}"
        digests = [host.digest_of(update_id) for host in taken]
        if not reason and not all(digests):
            reason = "the bytes that have landed have no digest, and could not be named: send again"
        landings = [host.landing for host in self._hosts]
        if not reason and (self._share is None or None in landings):
            reason = "this server has no landing"
        if reason or self._share is None:
            return Decision(reason)
        whole = self._share.whole if served is None else named_as_in(served, self._share.whole)
        memfds = tuple(landing.memfd for landing in landings if landing is not None)
        name = landed_name(self._share, digests)
        return Decision("", versions[0], os.getpid(), memfds, self._share, whole, name)

    def applied(self, update_id: int, failure: str = "") -> None:
        """Every rank of the engine serves the update, or, with a reason, none has begun to load it."""
        for host in self._hosts:
            host.applied(update_id, failure)

    def status(self) -> dict[str, object]:
        """What a user sees of it, as JSON; raises MessengerError."""
        seen = self._hosts[0].status()
        for rank, host in enumerate(self._hosts[1:], start=1):
            seen["landing"] = f"{seen['landing']}; of the trainer's rank {rank}: {host.status()['landing']}"
        return seen

    def close(self, why: str) -> None:
        """Ends the messengers with their engine; ``why`` is for senders, a predicate of the engine."""
        for host in self._hosts:
            host.close(why)

    def _other(self, share: Share) -> str:
        """Why a share is not one of those that this server takes."""
        if too_many := why_too_many(share):
            return too_many
        mine = self._share
        if mine is None or not self._is_taken():
            return ""
        if (share.count, share.split) != (mine.count, mine.split):
            return (
                f"the tensors come from {share.count} trainer ranks, and came from {mine.count} or were split"
                " otherwise: send them as before, or start this server again"
            )
        if share.whole.digest != mine.whole.digest:
            return share.whole.difference_from(mine.whole) or OTHER_TYPES
        return ""

    def _is_taken(self) -> bool:
        """Landings are made beside the engine, which another trainer may ask meanwhile: they are all one trainer's."""
        return any(host.is_taken for host in self._hosts)
