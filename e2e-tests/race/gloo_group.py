"""A group of a trainer (rank 0) and the workers, over gloo and addresses of the link between them."""

from __future__ import annotations

import datetime
from typing import Any

MEETING_SECONDS = 120.0
BROADCAST_LIMIT_SECONDS = 1800.0
"""As long as TRL lets NCCL wait."""


def joined(host: str, port: int, own: str, rank: int, rank_count: int) -> Any:
    from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

    store = TCPStore(host, port, rank_count, rank == 0, datetime.timedelta(seconds=MEETING_SECONDS))
    options = ProcessGroupGloo._Options()
    options._timeout = datetime.timedelta(seconds=BROADCAST_LIMIT_SECONDS)
    options._devices = [ProcessGroupGloo.create_device(hostname=own)]
    return ProcessGroupGloo(PrefixStore("weights", store), rank, rank_count, options)


def broadcast(group: Any, tensor: Any) -> None:
    from torch.distributed import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = 0
    group.broadcast([tensor], options).wait()
