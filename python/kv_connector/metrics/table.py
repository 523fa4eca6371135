"""What each of the messenger's figures counts. Made from docs/metrics.md by tests/metrics_table.py."""

from __future__ import annotations

COUNTERS = {
    "fetches_started": "Fetches that the decoder's engine asked for.",
    "fetches_arrived": "Fetches whose pages all arrived.",
    "fetches_failed": "Fetches that ended without their KV.",
    "fetches_abandoned": "Fetches that the engine abandoned before they had ended.",
    "fetches_regranted": "Grants given again because the prefiller preempted the request.",
    "grants_sent": "Grants that the decoder sent to prefillers.",
    "grants_received": "Grants that the prefiller received from decoders.",
    "grants_declined": "Grants that the prefiller answered with cannot-deliver.",
    "cancels_sent": "Cancellations that the decoder sent.",
    "cancels_confirmed": "Cancellations that a prefiller confirmed.",
    "prefills_started": "Prefills whose KV is to be sent.",
    "prefills_sent": "Prefills whose KV has left completely.",
    "prefills_expired": "Prefills whose pages were given up because no grant came within the limit.",
    "prefills_undelivered": "Prefills that ended before their KV had left.",
    "layers_sent": "Layer writes that left: one for a layer of a chunk, or of chunks that left together.",
    "layers_sent_early": "Layer writes that left before the forward pass of their chunk ended.",
    "pages_sent": "Pages (of one layer each) that the prefiller has written.",
    "sent_bytes": "Bytes of KV that the prefiller has written.",
    "strided_pieces_sent": "Pieces written token by token, because the other side splits heads differently and the layout is NHD: HND needs fewer writes.",  # noqa: E501
    "pages_received": "Pages (of one layer each) of fetches that arrived.",
    "received_bytes": "Bytes of KV of fetches that arrived.",
    "pages_compared": "Pages, or parts of pages, compared by page_checksum after they arrived.",
    "checksums_different": "Fetches failed because pages arrived damaged: check the network and the memory of both hosts.",  # noqa: E501
    "last_tokens_compared": "Requests whose last prompt token was compared, as received and as computed here (last_token_check).",  # noqa: E501
    "fetches_refuted": "Fetches refused before they began, because the prefiller computes another KV than this engine: the log names the layer.",  # noqa: E501
    "asks_answered": "Questions to other engines for cached prefixes, by what came of them.",
    "offers_made": "Answers to other engines that asked for cached prefixes.",
    "pulls_ended": "Requests that name an engine to take the beginning of their prompt from, by what came of it.",
    "tokens_pulled": "Prompt tokens whose KV was taken from another engine's prefix cache.",
    "weight_updates_ended": "Updates of weights at this host, by how they ended.",
    "weights_landed_bytes": "Bytes of weights that have landed whole in this host's memory.",
    "writes_refused": "Writes refused because they were outside their window or region.",
    "writes_failed": "Writes that ended without completing.",
    "windows_overshot": "Fetches failed because more immediates arrived than expected.",
    "back_pressured": "Writes delayed because the queue to their peer was full.",
    "links_opened": "Control links that completed their handshake.",
    "links_lost": "Control links that ended after their handshake, but for those of idle peers.",
    "links_idled": "Control links of idle peers that were closed because the prefiller has too many; each comes back with a request.",  # noqa: E501
    "links_refused": "Control links refused in the handshake, by either side.",
    "secrets_different": "Control links refused here because the peer did not prove the secret.",
    "versions_different": "Control links refused here because the peer speaks another version.",
    "geometries_different": "Control links refused here because the peer's KV geometry does not match ours.",
    "manifests_different": "Control links refused here because the peer's weights are other tensors than ours.",
    "handshakes_dropped": "Control links closed on arrival or in their handshake because they were too slow, or too many, or this engine sleeps.",  # noqa: E501
    "frames_invalid": "Invalid control frames, each of which closed its link, and messages on data paths, which are not used.",  # noqa: E501
    "faults_contained": "Bugs of the messenger that ended one fetch, one prefill or one control link and nothing else; the log has each.",  # noqa: E501
    "heartbeats_missed": "Heartbeat periods in which a connected peer sent nothing.",
    "peers_silent": "Peers declared lost because they sent nothing for silence_limit_seconds.",
    "stale_identities": "Fetches that named an engine id that is no longer at its address.",
    "events_dropped": "Log lines and timelines dropped because the engine did not poll.",
    "transport_sent_bytes": "Payload bytes that transports have sent.",
    "transport_writes_refused": "Writes that a transport refused: outside a grant or a region.",
    "transport_back_pressured": "Requests that a transport did not admit because its queue was full.",
    "transport_writes_sent": "Writes that transports have sent; pieces that are adjacent on both sides are one.",
    "transport_writes_saved": "Writes saved because pieces that are adjacent on both sides were sent as one.",
    "transport_runs_by_kernel": "Runs of bytes that a kernel copied from or to a GPU's memory, and not the copy engine.",  # noqa: E501
    "transport_writes_repeated": "Parts of writes that were sent again because the data path that had them broke.",
    "strays": "Immediates that arrived for no open window.",
    "paths_opened": "Data paths to peers that were set up.",
    "paths_lost": "Data paths to peers that broke.",
    "paths_rejected": "Data sockets closed before they became a path: garbage, another version, a wrong key, or too slow.",  # noqa: E501
}
REASONS: dict[str, tuple[str, ...]] = {
    "fetches_failed": (
        "not_connected",
        "connection_lost",
        "time_limit",
        "never_came",
        "expired",
        "prefill_aborted",
        "path_lost",
        "prefiller_stopping",
        "ungrantable",
        "damaged",
        "abandoned",
        "stopping",
        "fault",
    ),
    "prefills_undelivered": (
        "unwanted",
        "expired",
        "aborted",
        "preempted",
        "path_lost",
        "ungrantable",
        "stopping",
    ),
    "last_tokens_compared": (
        "equal",
        "different",
        "unjudged",
    ),
    "asks_answered": (
        "held",
        "not_held",
        "busy",
        "misfit",
        "unavailable",
        "peer_too_old",
        "unreachable",
        "late",
    ),
    "offers_made": (
        "held",
        "not_held",
        "busy",
        "misfit",
        "unavailable",
    ),
    "pulls_ended": (
        "arrived",
        "failed",
        "proves",
        "not_worth",
        "not_held",
        "unproven",
        "late",
        "expired",
        "busy",
        "misfit",
        "unavailable",
        "peer_too_old",
        "unreachable",
        "aborted",
        "malformed",
        "off",
        "role",
        "policy_fail",
    ),
    "weight_updates_ended": (
        "applied",
        "refused",
        "abandoned",
        "sender_lost",
    ),
}
"""Of counters that are told apart by reason."""
GAUGES = {
    "fetches_open": "Fetches not yet ended.",
    "pages_offered": "Pages of the prefix cache that are kept for other engines.",
    "prefills_open": "Prefills whose pages are still needed by the messenger.",
    "grants_waiting": "Grants that wait for their prefill to start.",
    "windows_open": "Imm windows in use.",
    "writes_in_flight": "Layer writes submitted and not completed.",
    "pages_quarantined": "Pages that wait for proof that nothing can write to them.",
    "regions_open": "Memory regions registered for transfer.",
    "sessions_open": "Peers with a completed handshake.",
    "last_token_difference_millionths": "The largest difference between received and own KV of a prompt's last token, in millionths of a layer's largest number: of each connected prefiller's last request, and the largest of these.",  # noqa: E501
    "weights_version": "Version of the weights that this host serves; 0 = those it started with.",
}
HISTOGRAMS = {
    "connect_seconds": "From a decoder's first packet to a prefiller to the end of their handshake.",
    "grant_delay_seconds": "From the engine's fetch to its first grant: the wait for a connection and for an imm slot.",
    "grant_queued_seconds": "From a grant's arrival at the prefiller to the first chunk of its prompt; nearly 0 if the chunk came first.",  # noqa: E501
    "first_write_seconds": "From the moment at which the prefiller has both grant and prompt to the completion of the first write.",  # noqa: E501
    "ready_poll_seconds": "From the arrival of a fetch's KV to the engine's poll that reports it: the engine's share of the delay.",  # noqa: E501
    "fetch_seconds": "From the engine's fetch to its last immediate.",
    "ask_seconds": "From the question for a cached prefix to the answer of an engine that holds some of it.",
    "pull_seconds": "From the moment at which a pull has its pages to its arrival.",
    "weights_apply_seconds": "Time in which an engine loads weights that have landed, and answers nothing.",
    "prefill_tail_seconds": "From the end of the last forward pass to the last write's completion.",
}
BUCKET_BOUNDS_SECONDS = tuple(5e-05 * 2**index for index in range(24))
"""The upper bounds of all histograms' buckets but the last, which has none."""
