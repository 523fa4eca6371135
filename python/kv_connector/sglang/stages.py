"""Lets the pipeline stages of a prefiller begin a request together.

SGLang's first stage decides for all when a queued request is computed: it reads what the others have put into a store
that is replicated to it, and sends its word down the pipeline. The others never poll what is queued, since SGLang's own
backends learn of grants in threads of theirs. Here the scheduler's thread of each stage looks itself, once a round.
"""

from __future__ import annotations

from typing import Any


def poll_queued(queue: Any) -> None:
    """Before ``PrefillBootstrapQueue.pop_bootstrapped``: tells the first stage what has become of each request here."""
    if queue.pp_rank == 0:
        return
    from kv_connector.sglang.sender import Sender

    for request in queue.queue:
        if isinstance(request.disagg_kv_sender, Sender):
            request.disagg_kv_sender.poll()
