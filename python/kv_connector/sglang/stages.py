"""Lets the pipeline stages of a prefiller begin a request together.

SGLang's first stage decides for all stages when a queued request is computed: it reads the states that the others have
put into a store replicated to it, and sends its decision down the pipeline. The other stages never poll queued
requests, because SGLang's own backends receive grants on their own threads. Here the scheduler's thread of each stage
polls them, once a round.
"""

from __future__ import annotations

from typing import Any


def poll_queued(queue: Any) -> None:
    """Runs before ``PrefillBootstrapQueue.pop_bootstrapped``: reports the state of each request to the first stage."""
    if queue.pp_rank == 0:
        return
    from kv_connector.sglang.sender import Sender

    for request in queue.queue:
        if isinstance(request.disagg_kv_sender, Sender):
            request.disagg_kv_sender.poll()
