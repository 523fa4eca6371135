"""SGLang's ``--enable-kv-cache-sharding``: each page of latent KV is on one of a prefiller's tensor-parallel ranks.

SGLang numbers pages over all ranks: page ``p`` is page ``p // N`` of rank ``p % N``. Schedulers, caches and senders of
all ranks name the same ``p``, and so does this backend: the messenger takes its rank's own pages out. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kv_connector.exceptions import OptionError
from kv_connector.sglang import BACKEND_NAME

OPTION = "--enable-kv-cache-sharding"
STEP = "handle_kv_cache_sharding"
"""SGLang's step of its arguments that lists the backends with which it divides pages."""
_LISTED = "nixl"
"""A backend of that list."""


def share_count() -> int:
    """Among how many ranks the engine's pages are divided; 1 = each rank has all of them."""
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().attn_tp_size) if get_parallel().enable_kv_cache_sharding else 1


def refuse_undivided(kinds: Sequence[str], mode: str, *, latent: bool, switches_roles: bool) -> None:
    """Raises OptionError for what is not served with divided pages."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    if not parallel.enable_kv_cache_sharding:
        return
    wrong = ""
    if mode != "prefill" or switches_roles:
        wrong = "of an engine that decodes, which needs all pages on each rank: start a prefiller with it"
    elif parallel.attn_cp_size > 1:
        wrong = (
            f"with --attn-cp-size {parallel.attn_cp_size}, where pages are divided among context-parallel ranks:"
            " start without one of both"
        )
    elif not latent:
        wrong = "of a model whose ranks have heads of their own: serve a model with latent KV (MLA)"
    elif kinds:
        wrong = f"of a model that keeps {kinds[0]} beside its KV pages: start without it"
    if wrong:
        raise OptionError(f"{OPTION} is True, expected False {wrong}")


def pass_list(server_args: Any, previous: Callable[[Any], None]) -> None:
    """Wraps that step: it compares the name of the backend, and reads nothing else of it.

    Where SGLang keeps what it has decided otherwise than known, the step runs as it is, and refuses the backend.
    """
    if not server_args.enable_kv_cache_sharding or server_args.disaggregation_transfer_backend != BACKEND_NAME:
        previous(server_args)
        return
    ours = _declared(server_args)
    try:
        previous(server_args)
    finally:
        if ours is not None:
            kept = server_args._resolved_overrides
            kept[:] = [other for other in kept if other is not ours]


def _declared(server_args: Any) -> Any:
    """SGLang's entry by which its steps see a listed backend; None if it cannot be made."""
    try:
        from sglang.srt.arg_groups.overrides import declare_resolution

        before = len(getattr(server_args, "_resolved_overrides", None) or ())
        declare_resolution(server_args, BACKEND_NAME, disaggregation_transfer_backend=_LISTED)
        (ours,) = server_args._resolved_overrides[before:]
    except (ImportError, AttributeError, TypeError, ValueError):
        return None
    return ours
