"""Names that are no options here: NixlConnector's, with what to do (as docs/from-nixl.md says), and misspelt ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

NIXL_OPTIONS: Mapping[str, str] = {
    "backends": "set transports instead, or leave it out",
    "kv_lease_duration": "set grant_wait_seconds instead, or leave it out",
    "num_threads": "set transfer_workers instead, or leave it out",
    "enforce_handshake_compat": "leave it out, the two sides' KV layouts are always compared",
    "engine_ttl": "leave it out, a peer that sends nothing is given up after silence_limit_seconds",
    "kv_recompute_threshold": "leave it out, a prompt's KV is fetched whatever its length",
    "bidirectional_kv_xfer": "leave it out, a prefiller pulls from the engine that a request names as its source",
    "decoder_kv_blocks_ttl": "leave it out, what the prefix cache still has is pulled, nothing is kept for it",
    "push_registration_timeout": "leave it out, connect_limit_seconds and grant_wait_seconds are the limits here",
}


def unknown_option(name: object, known: Iterable[str], place: str) -> str:
    """The sentence about an option of that name, which is set at ``place`` and is none of the known ones."""
    if name in NIXL_OPTIONS:
        return f"unknown option {name!r} in {place}, which is NixlConnector's: {NIXL_OPTIONS[str(name)]}"
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known options are {', '.join(known)}"
    return f"unknown option {name!r} in {place}: {hint}"
