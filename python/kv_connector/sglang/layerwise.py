"""Sends layers while the forward pass still runs: chunks are planned before it, layers are counted during it.

SGLang itself sends a chunk after its forward pass. Here a hook around ``Scheduler.run_batch`` tells the messenger which
pages the pass will fill, and a hook on each attention layer counts it when its KV is written. The pages that SGLang
sends afterwards are then known already. If the hooks cannot be used, chunks are sent when SGLang sends them, and a
warning is logged.

Used by the scheduler's thread only. On a CPU that thread runs the forward pass itself. On a GPU it queues the pass, on
a separate stream if SGLang overlaps passes; the begin and end of a step are then queued on that stream too, and a layer
is counted at the end of its decoder layer. The pass is planned when its page numbers have come from the device, for
which the hooks look before the first layer and behind each.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kv_connector.memory.cuda_driver import CudaError
from kv_connector.memory.first_pass import FirstPass
from kv_connector.memory.layer_counter import GraphLayers, LayerCounter
from kv_connector.sglang.exchange import Exchange, PlannedChunk
from kv_connector.sglang.geometry import is_counted
from kv_connector.sglang.page_numbers import PageNumbers
from kv_connector.sglang.reported_step import ComingChunks, ReportedStep
from kv_connector.sglang.twins import Twins

logger = logging.getLogger("sglang.srt.kv_messenger")


class AttentionHooks:
    """Reports completed attention layers to a counter. Installed when the model is loaded, before any counter."""

    def __init__(self) -> None:
        self._counter: LayerCounter | None = None
        self._graph_layers: GraphLayers | None = None
        self._names: dict[int, Sequence[str]] = {}
        self._page_numbers = PageNumbers(None)
        self._refused = False
        self.layers: set[int] = set()
        """The layers whose attention has a hook."""
        self.window_tokens = 0
        """The number of tokens that the model's sliding windows keep before a token; 0 = no windows."""
        self.first_layer = 0
        """The number, in the whole model, of this pipeline stage's first layer."""

    def install(self, model: Any) -> None:
        """Hooks every attention layer of a model."""
        for module, layer_id in _attention_of(model).values():
            self._install(module, [layer_id])

    def install_at_layer_ends(self, model: Any) -> None:
        """Hooks the decoder layer around each attention: kernels outside of the attention may write KV too.

        A layer with latent KV has two attentions, one for prompts and one for new tokens, with one layer's number.
        """
        around: dict[str, set[int]] = {}
        for path, (_module, layer_id) in _attention_of(model).items():
            around.setdefault(_decoder_layer_of(path), set()).add(layer_id)
        for path, layer_ids in around.items():
            self._install(model.get_submodule(path), sorted(layer_ids))
        if around:
            first = min(around, key=lambda path: min(around[path]))
            model.get_submodule(first).register_forward_pre_hook(self._look_before)

    def _install(self, module: Any, layer_ids: Sequence[int]) -> None:
        self.layers.update(layer_ids)
        module.register_forward_hook(self._hook(layer_ids))

    def count_into(self, counter: LayerCounter, names: Iterable[str], page_numbers: PageNumbers | None = None) -> None:
        """Sets the counter, the geometry's names under which layers are counted, and the numbers to look for."""
        self._names = _by_layer(names)
        self._counter = counter
        self._page_numbers = page_numbers or PageNumbers(None)

    def count_into_graphs(self, graph_layers: GraphLayers) -> None:
        """Makes graphs that are captured from now on count their layers."""
        self._names = _by_layer(graph_layers.names)
        self._graph_layers = graph_layers

    def stop_counting(self) -> None:
        """Called before the messenger frees the counter's memory."""
        self._counter = None
        self._page_numbers = PageNumbers(None)

    def missing(self, names: Iterable[str]) -> list[str]:
        """The layers of the geometry that no hook counts."""
        return [name for name in names if is_counted(name) and int(name.split(".")[1]) not in self.layers]

    def _hook(self, layer_ids: Sequence[int]) -> Callable[..., None]:
        from torch.compiler import is_compiling

        def layer_done(*_ignored: object) -> None:
            counts = self._counter or self._graph_layers
            if is_compiling() or counts is None:
                return
            try:
                for layer_id in layer_ids:
                    for name in self._names.get(layer_id, ()):
                        counts.layer_complete(name)
            except CudaError:
                self._say_refused()
            self._look()

        return layer_done

    def _look_before(self, *_ignored: object) -> None:
        from torch.compiler import is_compiling

        if not is_compiling():
            self._look()

    def _look(self) -> None:
        """Looks for page numbers, but not in a capture, which a question about an event would end."""
        numbers, counter = self._page_numbers, self._counter
        if numbers.are_coming and counter is not None and not counter.is_capturing:
            numbers.look()

    def _say_refused(self) -> None:
        """Logs a failed count once. The counter stops by itself: the next layer is out of order for it."""
        if not self._refused:
            self._refused = True
            logger.exception("a layer cannot be counted on the GPU: what is behind it leaves when its pass is over")


def _attention_of(model: Any) -> dict[str, tuple[Any, int]]:
    """The attention modules of a model and their layer ids, by path."""
    from sglang.srt.layers.radix_attention import RadixAttention

    return {
        path: (module, module.layer_id) for path, module in model.named_modules() if isinstance(module, RadixAttention)
    }


def _decoder_layer_of(path: str) -> str:
    """ "model.layers.3" for "model.layers.3.self_attn.attn"; the path itself if it has no layer number."""
    parts = path.split(".")
    numbered = next((place for place, part in enumerate(parts) if part.isdecimal()), len(parts) - 1)
    return ".".join(parts[: numbered + 1])


def counted(names: Iterable[str]) -> int:
    """The number of these names that a pass counts."""
    return sum(len(of_layer) for of_layer in _by_layer(names).values())


def _by_layer(names: Iterable[str]) -> dict[int, Sequence[str]]:
    by_layer: dict[int, list[str]] = {}
    for name in names:
        if is_counted(name):
            by_layer.setdefault(int(name.split(".")[1]), []).append(name)
    return dict(by_layer)


HOOKS = AttentionHooks()
"""The one of this process: the model is loaded before the endpoint exists."""


class LayerwiseSteps:
    """Reports the forward passes of one prefiller to the messenger. Used by the scheduler's thread only."""

    def __init__(
        self,
        exchange: Exchange,
        counter: LayerCounter,
        twins: Twins,
        first_pass: FirstPass | None = None,
        page_numbers: PageNumbers | None = None,
    ) -> None:
        self.twins = twins
        self.first_pass = first_pass
        """The check that must succeed before a pass is reported early; None if this thread counts, not a GPU."""
        self._exchange = exchange
        self._counter = counter
        self.page_numbers = page_numbers or PageNumbers(None)
        self._step = 0
        self._warned_out_of_order = False

    def run(
        self,
        plan: Callable[[], Sequence[PlannedChunk] | ComingChunks],
        forward: Callable[[], Any],
        on_stream: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> Any:
        """Runs a forward pass, during which its planned chunks are sent; returns the result of ``forward``.

        ``on_stream`` is a context in which work is queued on the stream of the pass.
        """
        coming = _asked(plan)
        if coming is None:
            return forward()
        self._step += 1
        try:
            with on_stream():
                counter_start = self._counter.begin_step()
        except CudaError:
            logger.exception("a forward pass cannot be counted on the GPU; its chunks leave afterwards")
            return forward()
        step = ReportedStep(self._exchange, self._step, counter_start, coming.plan)
        self.page_numbers.when_here(coming.event, step.begin)
        try:
            result = forward()
        except BaseException:
            self._fail(step, on_stream)
            raise
        try:
            with on_stream():
                counter_end = self._counter.end_step()
        except CudaError:
            logger.exception("the end of a forward pass cannot be counted on the GPU: what it computed is not sent")
            self._fail(step, on_stream)
            return result
        self._say_if_out_of_order()
        step.end(counter_end)
        return result

    def _fail(self, step: ReportedStep, on_stream: Callable[[], AbstractContextManager[Any]]) -> None:
        try:
            with on_stream():
                self._counter.fail_step()
        except CudaError:
            logger.exception("a forward pass that failed cannot be ended on the GPU")
        step.fail()

    def _say_if_out_of_order(self) -> None:
        if self._counter.steps_out_of_order and not self._warned_out_of_order:
            self._warned_out_of_order = True
            logger.warning(
                "this model's layers do not finish in their order: those behind the first that is out of order leave"
                " when their forward pass is over"
            )


def _asked(plan: Callable[[], Sequence[PlannedChunk] | ComingChunks]) -> ComingChunks | None:
    """What a pass computes that leaves early; None = nothing."""
    try:
        planned = plan()
    except Exception:
        logger.exception("a forward pass could not be planned; its chunks leave afterwards")
        return None
    if isinstance(planned, ComingChunks):
        return planned
    return ComingChunks.known(planned) if planned else None


def install_hooks(_result: None, runner: Any) -> None:
    """Runs after ``ModelRunner.load_model``, before any graph is captured.

    In an engine that is always a decoder it only reads the size of the windows and which layers the stage has.
    """
    from sglang.srt.runtime_context import get_device, get_disagg

    from kv_connector.sglang import BACKEND_NAME

    disaggregation = get_disagg()
    if disaggregation.disaggregation_transfer_backend != BACKEND_NAME:
        return
    if runner.is_draft_worker:  # its layers have the same numbers as the target's
        return
    HOOKS.window_tokens = runner.sliding_window_size or 0
    HOOKS.first_layer = getattr(runner.model, "start_layer", 0)  # as SGLang's ``layer_setup`` has it
    if not _prefills(disaggregation):
        return
    if get_device().device == "cpu":
        HOOKS.install(runner.model)
    else:
        HOOKS.install_at_layer_ends(runner.model)


def count_into_graphs(_result: None, runner: Any, *_args: Any, **_named: Any) -> None:
    """Runs after ``ModelRunner.alloc_memory_pool``, before any graph is captured: graphs on a GPU must count layers."""
    from sglang.srt.runtime_context import get_device, get_disagg

    from kv_connector.sglang import BACKEND_NAME

    disaggregation = get_disagg()
    if disaggregation.disaggregation_transfer_backend != BACKEND_NAME or get_device().device == "cpu":
        return
    if runner.is_draft_worker or not _prefills(disaggregation):
        return
    from kv_connector.sglang.device_side import DEVICE

    DEVICE.prepare_graphs(runner.token_to_kv_pool)
    if DEVICE.graph_layers is not None:
        HOOKS.count_into_graphs(DEVICE.graph_layers)


def _prefills(disaggregation: Any) -> bool:
    """Whether the engine is a prefiller, or may become one."""
    return bool(disaggregation.disaggregation_mode == "prefill" or disaggregation.enable_pd_role_switch)
