"""Options of vLLM's NixlConnector, and what to do with each here; docs/from-nixl.md says the same."""

from __future__ import annotations

from collections.abc import Mapping

NIXL_OPTIONS: Mapping[str, str] = {
    "backends": "set transports instead, or leave it out",
    "kv_lease_duration": "set grant_wait_seconds instead, or leave it out",
    "num_threads": "set transfer_workers instead, or leave it out",
    "enforce_handshake_compat": "leave it out, the two sides' KV layouts are always compared",
    "engine_ttl": "leave it out, a peer that sends nothing is given up after silence_limit_seconds",
    "kv_recompute_threshold": "leave it out, a prompt's KV is fetched whatever its length",
    "bidirectional_kv_xfer": "leave it out, a decoder's KV is not fetched by a prefiller",
    "decoder_kv_blocks_ttl": "leave it out, a decoder's KV is not fetched by a prefiller",
    "push_registration_timeout": "leave it out, connect_limit_seconds and grant_wait_seconds are the limits here",
}
