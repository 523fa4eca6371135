"""The ranks of an FSDP2 trainer each write their own rows into servers, which go on answering: nothing is gathered.

torch is imported when a transfer is made.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kv_connector.exceptions import KvConnectorError, WeightsError
from kv_connector.weights.landing import SharedMemory
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.sender import LANDING_LIMIT_SECONDS, WeightSender, new_update_id
from kv_connector.weights.sender_options import sender_options
from kv_connector.weights.servers import checked_urls
from kv_connector.weights.shares import Share, why_too_many
from kv_connector.weights.staging import Staging
from kv_connector.weights.versions import Versions

logger = logging.getLogger("kv_connector")
_Result = TypeVar("_Result")


@dataclass
class _Update:
    """One rank's part in an update."""

    share: Share
    memory: SharedMemory
    id: int
    version: int
    failed: dict[str, str] = field(default_factory=dict)
    """Why servers have left it, by URL: what any rank knows of."""


class FsdpWeightTransfer:
    """Sends the tensors of ``fully_shard`` from each rank that has rows of them, one version after the other.

    Every rank makes one, and calls the same methods in the same order, from one thread. A rank's process has a JVM from
    the first update on, and holds a copy of its own rows in this host's memory.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        listen: str = "",
        first_version: int = 0,
        landing_limit_seconds: float = LANDING_LIMIT_SECONDS,
        group: Any = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Raises OptionError or WeightsError; connects to nothing.

        The arguments are those of ``KvMessengerWeightTransfer``; ``group`` is the torch process group over which the
        tensors are split, by default that of all ranks. Its own limit is that of a rank which has stopped.
        """
        import torch.distributed

        self._urls = checked_urls(servers)
        self._versions = Versions(first_version)
        self._options = sender_options(listen, options or {}, "listen")
        self._landing_limit_seconds = landing_limit_seconds
        self._distributed = torch.distributed
        self._group = group
        self._rank: int = torch.distributed.get_rank(group)
        self._rank_count: int = torch.distributed.get_world_size(group)
        self._staging = Staging()
        self._sender: WeightSender | None = None

    def send_weights(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Copies this rank's rows of (name, tensor) pairs, and returns when all servers serve the tensors of all ranks.

        The pairs are those of ``named_parameters()``, by the checkpoint's names and in the same order at every rank
        and with every update. A tensor that is not split is taken from rank 0. Raises WeightsError, at every rank: for
        tensors that are split otherwise than by rows over all ranks, for a server that does not load them, for a rank
        that is lost. Servers that did not load them serve what they served, and are asked again with the next update.
        """
        began = time.monotonic()
        try:
            update = self._taken(tensors)
            for step in (self._connected, self._written, self._loaded):
                for failed in self._together(functools.partial(step, update)):
                    update.failed = failed | update.failed
        except BaseException:
            self.close()
            raise
        if update.failed:
            self.close()
            raise WeightsError("; ".join(f"{url}: {reason}" for url, reason in update.failed.items()))
        logger.info(
            "version %d of the weights is served by %d servers: %d bytes of rank %d of %d, in %.2f s",
            *(update.version, len(self._urls), update.share.own.length_bytes, self._rank, self._rank_count),
            time.monotonic() - began,
        )

    def close(self) -> None:
        """Ends this rank's connections; servers keep what they serve, and a later update makes new ones."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    def _taken(self, tensors: Iterable[tuple[str, Any]]) -> _Update:
        """An update of this rank's share; its id and version are those of rank 0."""
        held: list[tuple[Share, SharedMemory]] = []

        def take() -> tuple[str, tuple[bool, ...], int, int]:
            held.append(self._copied(tensors))
            share = held[0][0]
            return share.whole.digest, share.split, new_update_id(), self._versions.next()

        of_ranks = self._together(take)
        for rank, (digest, split, _, _) in enumerate(of_ranks):
            if (digest, split) != of_ranks[0][:2]:
                raise WeightsError(
                    f"the trainer's rank {rank} has other tensors than rank 0, or splits them otherwise: send the same"
                    " names, types and shapes in the same order from each"
                )
        return _Update(*held[0], *of_ranks[0][2:])

    def _copied(self, tensors: Iterable[tuple[str, Any]]) -> tuple[Share, SharedMemory]:
        seen: list[tuple[str, str, tuple[int, ...]]] = []
        split: list[bool] = []
        manifest, memory = self._staging.take(self._own(tensors, seen, split))
        if unsound := self._staging.not_finite():
            logger.error("of the weights that rank %d sends, %s", self._rank, unsound)
        share = Share.of(Manifest.of(seen), tuple(split), self._rank, self._rank_count)
        if too_many := why_too_many(share):
            raise WeightsError(too_many)
        for place, ruled in zip(manifest.places, share.own.places, strict=True):
            if place != ruled:
                raise WeightsError(
                    f"rank {self._rank} has {list(place.shape)} of tensor {place.name}, expected {list(ruled.shape)} of"
                    f" {self._rank_count} ranks: split it by fully_shard"
                )
        return share, memory

    def _own(
        self, tensors: Iterable[tuple[str, Any]], seen: list[tuple[str, str, tuple[int, ...]]], split: list[bool]
    ) -> Iterator[tuple[str, Any]]:
        """What this rank sends; ``seen`` and ``split`` get all tensors."""
        for name, tensor in tensors:
            placed = hasattr(tensor, "placements")
            divided = placed and self._is_split(name, tensor)
            seen.append((name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)))
            split.append(divided)
            if divided or self._rank == 0:
                yield name, tensor.to_local() if placed else tensor

    def _is_split(self, name: str, tensor: Any) -> bool:
        """Raises WeightsError if it is split otherwise than by rows, over all ranks in their order."""
        mesh, placements = tensor.device_mesh, tensor.placements
        if all(placement.is_replicate() for placement in placements):
            return False
        by_rows = len(placements) == 1 and placements[0].is_shard(0)
        if by_rows and mesh.size() == self._rank_count and mesh.get_local_rank() == self._rank:
            return True
        raise WeightsError(
            f"tensor {name} is placed {placements} on {mesh}, expected rows over all {self._rank_count} ranks in their"
            " order: use fully_shard with one dimension, or give their group"
        )

    def _connected(self, update: _Update) -> dict[str, str]:
        if self._sender is not None:
            return {}
        share = update.share
        self._sender = WeightSender(self._options, share.own, self._urls, update.memory, share.described())
        return self._sender.connect()

    def _written(self, update: _Update) -> dict[str, str]:
        assert self._sender is not None
        return self._sender.write(update.id, update.version, self._landing_limit_seconds)

    def _loaded(self, update: _Update) -> dict[str, str]:
        """Rank 0 has each server load that has the bytes of all ranks."""
        assert self._sender is not None
        return self._sender.load(update.id, update.version, update.failed) if self._rank == 0 else {}

    def _together(self, step: Callable[[], _Result]) -> list[_Result]:
        """Runs a step at every rank; returns what each has, by rank. Raises WeightsError at every rank if one fails."""
        own: _Result | None = None
        failure = ""
        try:
            own = step()
        except (KvConnectorError, OSError) as failed:
            failure = str(failed)
        of_ranks: list[Any] = [None] * self._rank_count
        try:
            self._distributed.all_gather_object(of_ranks, (failure, own), group=self._group)
        except RuntimeError as lost:
            raise WeightsError(
                f"a rank of the trainer is lost ({lost}): servers serve what they served, or the new weights if those"
                " of all ranks had landed"
            ) from lost
        for rank, (reason, _) in enumerate(of_ranks):
            if reason:
                raise WeightsError(f"the trainer's rank {rank}: {reason}")
        return [result for _, result in of_ranks]
