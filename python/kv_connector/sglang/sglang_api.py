"""The one place that imports SGLang's own classes, and the check that they are those this backend was made for."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from typing import TYPE_CHECKING, Any

from kv_connector.exceptions import OptionError

KNOWN_VERSIONS = ("0.5.23",)
"""Releases with which the backend was tested."""

if TYPE_CHECKING:

    class CommonEndpoint:
        """What every backend's manager begins with."""

        kv_args: Any
        local_ip: str
        rank_port: int
        server_socket: Any
        _zmq_ctx: Any
        attn_tp_size: int
        attn_tp_rank: int
        attn_cp_size: int
        attn_dp_rank: int
        dcp_size: int
        pp_size: int
        pp_rank: int
        prefill_info_table: dict[str, Any]
        request_status: Any
        """Of a prefiller with pipeline stages a PPConsensusStore: replicated to the first of them."""
        failure_records: dict[int, str]
        """Why SGLang itself has ended a room."""
        waiting_timeout: float
        bootstrap_timeout: float
        enable_deferred_decode_kv_release: bool

        def __init__(self, args: Any, mode: Any, server_args: Any, is_mla_backend: bool | None = False) -> None: ...
        def register_to_bootstrap(self) -> None:
            """Tells the bootstrap server this rank's address."""

        def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
            """Asks for a prefiller's topology; blocks."""

        def check_status_pp_consensus(self, bootstrap_room: int) -> int:
            """The lowest state of a room on all pipeline stages; asked on the first only."""

    class CommonKVBootstrapServer:
        """The HTTP registry of a prefiller's ranks."""

    class BaseKVSender:
        """What every backend's sender begins with."""

    class BaseKVReceiver:
        """What every backend's receiver begins with."""

    class KVPoll:
        """States of a transfer; ranks agree on the lowest."""

        Failed = 0
        Bootstrapping = 1
        WaitingForInput = 2
        Transferring = 3
        Success = 4

    KVTransferMetric: Any
    KVTransferError: Any
    PrefillServerInfo: Any

else:
    from sglang.srt.disaggregation.base.conn import BaseKVReceiver, BaseKVSender, KVPoll, KVTransferMetric
    from sglang.srt.disaggregation.common.conn import (
        CommonKVBootstrapServer,
        KVTransferError,
        PrefillServerInfo,
    )
    from sglang.srt.disaggregation.common.conn import (
        CommonKVManager as CommonEndpoint,
    )

__all__ = [
    "BaseKVReceiver",
    "BaseKVSender",
    "CommonEndpoint",
    "CommonKVBootstrapServer",
    "KVPoll",
    "KVTransferError",
    "KVTransferMetric",
    "PrefillServerInfo",
    "check",
]

_DISAGGREGATION = "sglang.srt.disaggregation"
_SIGNATURES = (
    (
        f"{_DISAGGREGATION}.common.conn.CommonKVManager.__init__",
        "self, args, disaggregation_mode, server_args, is_mla_backend",
    ),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.register_to_bootstrap", "self"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.try_ensure_parallel_info", "self, bootstrap_addr"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.check_status_pp_consensus", "self, bootstrap_room"),
    (f"{_DISAGGREGATION}.pp_consensus_store.PPConsensusStore.pop", "self, key, default"),
    (f"{_DISAGGREGATION}.pp_consensus_store.PPConsensusStore.collect", "self, key"),
    (f"{_DISAGGREGATION}.prefill.PrefillBootstrapQueue.pop_bootstrapped", "self"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.is_abort_release_safe", "self, bootstrap_room, required_acks"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVManager.clear_deferred_abort_state", "self, bootstrap_room"),
    (
        f"{_DISAGGREGATION}.common.conn.KVTransferError.__init__",
        "self, bootstrap_room, failure_reason, is_from_another_rank",
    ),
    (
        f"{_DISAGGREGATION}.common.conn.CommonKVSender.__init__",
        "self, mgr, bootstrap_addr, bootstrap_room, req_has_disagg_prefill_dp_rank",
    ),
    (f"{_DISAGGREGATION}.common.conn.CommonKVSender.init", "self, num_kv_indices, aux_index"),
    (
        f"{_DISAGGREGATION}.common.conn.CommonKVSender.send",
        "self, kv_indices, state_indices, num_kv_tokens, indices_event",
    ),
    (f"{_DISAGGREGATION}.common.conn.CommonKVReceiver.__init__", "self, mgr, bootstrap_addr, bootstrap_room"),
    (f"{_DISAGGREGATION}.common.conn.CommonKVReceiver.init", "self, prefill_dp_rank"),
    (
        f"{_DISAGGREGATION}.common.conn.CommonKVReceiver.send_metadata",
        "self, kv_indices, aux_index, state_indices, decode_prefix_len, destination, device_kv_indices",
    ),
    (f"{_DISAGGREGATION}.common.conn.CommonKVReceiver.ensure_abort_notified", "self, force_arm"),
    (f"{_DISAGGREGATION}.decode.DecodeTransferQueue.resolve_deferred_releases", "self"),
    (f"{_DISAGGREGATION}.utils.get_kv_class", "transfer_backend, class_type"),
)


def check() -> None:
    """Refuses an SGLang whose private interfaces are not those this backend was made for."""
    for path, expected in _SIGNATURES:
        seen = _parameters(path)
        if seen != expected:
            raise OptionError(
                f"SGLang {importlib.metadata.version('sglang')} has {path}({seen}), expected ({expected}): the backend"
                f" kv_messenger was made for SGLang {', '.join(KNOWN_VERSIONS)}; install one of these"
            )


def _parameters(path: str) -> str:
    parts = path.split(".")
    depth = next(i for i, part in enumerate(parts) if part[0].isupper() or i == len(parts) - 1)
    try:
        found: Any = importlib.import_module(".".join(parts[:depth]))
        for name in parts[depth:]:
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return "missing"
    return ", ".join(inspect.signature(inspect.unwrap(found)).parameters)
