"""vLLM's steps on a CUDA that computes nothing, and what its ranks say of themselves. Each rank is a process."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from gpu_check.vllm_on_torch.__main__ import Engine, Preemptions, Replays
from gpu_check.vllm_on_torch.plan import ALONE

from uncomputed import flash_infer, offloading, sleep
from uncomputed.cuda_platform import contexts, rdma
from uncomputed.offloading import Copied
from uncomputed.rows import FIGURES, TOKEN, Place, Rows

MORE_FIGURES = ("strided_pieces_sent", "transport_runs_by_kernel", "transport_writes_sent")
"""Of the messenger, beside those that gpu_check asks for."""
MACHINE = "UNCOMPUTED_MACHINE"
"""A folder that is / of a machine with these devices, as far as their places are looked up there."""
COUNTED = (*FIGURES, "replays", "offloaded_bytes", "loaded_bytes")
STEPS_OF_STATES = {"MambaMixer2": "conv_ssm_forward", "ShortConv": "forward_cuda"}
"""By the class of a layer that keeps states: what computes its step."""


class Rank:
    """What this process knows when it is a rank; it is forked with it, or has all ranks in itself."""

    rows: Rows
    replays: Replays


def stand_in(rows: Rows) -> None:
    """Steps pass through `rows`, KV's places are taken when it has its memory, and outputs get the tokens."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner as Second
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as First

    Rank.rows = rows
    for runner in (First, Second):
        _stand_in_for_steps(rows, runner)
    _stand_in_for_tokens_of_first_runner()
    _stand_in_for_tokens(rows)


def _stand_in_for_steps(rows: Rows, runner_class: Any) -> None:
    execute, initialize = runner_class.execute_model, runner_class.initialize_kv_cache

    def executed(runner: Any, scheduled: Any, *given: Any, **named: Any) -> Any:
        rows.begin_step(scheduled)
        return execute(runner, scheduled, *given, **named)

    def initialized(runner: Any, config: Any, *given: Any, **named: Any) -> None:
        rows.groups, rows.places, rows.states = placed(config, runner.vllm_config)
        initialize(runner, config, *given, **named)
        for name in rows.states:
            _stand_in_for_states(rows, name, runner.vllm_config.compilation_config.static_forward_context[name])

    runner_class.execute_model = executed
    runner_class.initialize_kv_cache = initialized


def _stand_in_for_states(rows: Rows, name: str, layer: Any) -> None:
    step_name = STEPS_OF_STATES[type(layer).__name__]
    step = getattr(layer, step_name)

    def stepped(*given: Any, **named: Any) -> Any:
        made = step(*given, **named)
        rows.state(name, layer.kv_cache)
        return made

    setattr(layer, step_name, stepped)


def placed(config: Any, engine: Any) -> tuple[list[int | None], dict[int, Place], dict[str, Place]]:
    """By vLLM's KVCacheConfig: tokens of a block by group, and where layers have rows and where states."""
    from vllm.distributed import get_tensor_model_parallel_rank

    layers = engine.compilation_config.static_forward_context
    numbers = {name: number_of(name, built) for built, name in enumerate(layers)}
    ranks = engine.parallel_config.tensor_parallel_size
    first_head = get_tensor_model_parallel_rank() * engine.model_config.get_total_num_kv_heads() // ranks
    if engine.model_config.use_mla:
        first_head = 0
    groups: list[int | None] = []
    places: dict[int, Place] = {}
    states: dict[str, Place] = {}
    for group, each in enumerate(config.kv_cache_groups):
        groups.append(each.kv_cache_spec.block_size)
        specs = getattr(each.kv_cache_spec, "kv_cache_specs", {})
        for name in each.layer_names:
            spec = specs.get(name, each.kv_cache_spec)
            if (scale := getattr(layers[name], "_k_scale", None)) is None:
                groups[-1] = None
                states[name] = Place(numbers[name], group, first_head=get_tensor_model_parallel_rank())
                continue
            window, chunk = (getattr(spec, what, None) or 0 for what in ("sliding_window", "attention_chunk_size"))
            places[scale.data_ptr()] = Place(numbers[name], group, window, chunk, first_head)
    return groups, places, states


def number_of(layer: str, built: int) -> int:
    """Of a layer in the model, also where a stage of a pipeline has built only some; else in the order of building."""
    numbers = re.findall(r"\.layers\.(\d+)\.", layer)
    return int(numbers[0]) if numbers else built


def _stand_in_for_tokens_of_first_runner() -> None:
    from vllm.v1.worker.gpu_model_runner import AsyncGPUModelRunnerOutput

    get_output = AsyncGPUModelRunnerOutput.get_output

    def output(waiting: Any) -> Any:
        waiting.async_copy_ready_event.synchronize()
        waiting.sampled_token_ids_cpu = torch.full_like(waiting.sampled_token_ids_cpu, TOKEN)
        return get_output(waiting)

    AsyncGPUModelRunnerOutput.get_output = output


def _stand_in_for_tokens(rows: Rows) -> None:
    import numpy as np
    from vllm.v1.worker.gpu.async_utils import AsyncOutput

    begin, get_output = AsyncOutput.__init__, AsyncOutput.get_output

    def begun(waiting: Any, *given: Any, **named: Any) -> None:
        begin(waiting, *given, **named)
        waiting.sampled = rows.sampled

    def output(waiting: Any) -> Any:
        waiting.copy_event.synchronize()
        names = waiting.model_runner_output.req_ids
        waiting.num_sampled_tokens_np = np.array([waiting.sampled.get(name, 1) for name in names])
        waiting.sampled_token_ids = np.full_like(waiting.sampled_token_ids, TOKEN)
        return get_output(waiting)

    AsyncOutput.__init__ = begun
    AsyncOutput.get_output = output


def _stand_in_for_places(root: Path) -> None:
    from kv_connector.runtime import rdma_topology

    read = rdma_topology.read_machine
    rdma_topology.read_machine = lambda _: read(root)


class UncomputedEngine(Engine):
    """Asks all ranks; figures are sums, and what a rank has to say for itself comes as a list."""

    def arguments(self) -> dict[str, Any]:
        if self.plan.sleeps:
            sleep.stand_in()
        if machine := os.environ.get(MACHINE):
            _stand_in_for_places(Path(machine))
        if self.plan.beside:
            offloading.stand_in()
        given = super().arguments()
        if self.plan.attention == flash_infer.NAME:
            flash_infer.stand_in()
        if self.plan.ranks * self.plan.stages > 1:
            parallel = {"tensor_parallel_size": self.plan.ranks, "pipeline_parallel_size": self.plan.stages}
            given |= {**parallel, "distributed_executor_backend": "mp"}
        return given

    def counted(self) -> tuple[Replays, Preemptions]:
        replays, preemptions = super().counted()
        Rank.replays = replays
        return replays, preemptions

    def has_margins(self) -> bool:
        return False

    def described(self) -> dict[str, Any]:
        if self.plan.role == ALONE:
            return self.versions()
        addresses = [address for address in self._ask(address_of_rank) if address]
        host, port = addresses[0]
        named = ",".join(f"{host}:{port}" for host, port in addresses)  # as the engine's own answers name several
        return self.versions() | {"host": host if len(addresses) == 1 else named, "port": port}

    def held(self) -> dict[str, int]:
        held = self.held_blocks()
        for rank in self._ask(held_by_rank):
            held |= rank
        return held

    def figures(self) -> dict[str, Any]:
        ranks = self._ask(figures_of_rank)
        summed = {name: sum(rank[name] for rank in ranks) for name in COUNTED}
        messengers = [rank["messenger"] for rank in ranks if rank["messenger"]]
        summed |= {name: sum(each[name] for each in messengers) for name in (messengers or [{}])[0]}
        first_wrong = next((rank["first_wrong"] for rank in ranks if rank["first_wrong"]), "")
        named = {"first_wrong": first_wrong, "preemptions": self.preemptions.count}
        return summed | named | {name: [rank[name] for rank in ranks] for name in ("contexts", "rdma")}

    def _ask(self, what: Any) -> list[Any]:
        return list(self._core.model_executor.collective_rpc(what))


def address_of_rank(worker: Any) -> tuple[str, int] | None:
    """Of its messenger, if it has one."""
    messenger = own_messenger()
    return None if messenger is None else (messenger.opened.control_host, messenger.opened.control_port)


def held_by_rank(worker: Any) -> dict[str, int]:
    half, messenger = own_half(), own_messenger()
    held = {} if half is None else dict(half.held())
    if messenger is not None:
        held |= {name: count for name, count in messenger.leak_check().held.items() if count}
    return held


def figures_of_rank(worker: Any) -> dict[str, Any]:
    from gpu_check.vllm_on_torch.__main__ import FIGURES

    messenger, counts = own_messenger(), {}
    if messenger is not None:
        counters = messenger.stats().counters
        counts = {name: counters.get(f"kv_messenger_{name}", 0.0) for name in (*FIGURES, *MORE_FIGURES)}
    own = {"replays": Rank.replays.count, "messenger": counts, "contexts": contexts(), "rdma": rdma()}
    own |= {"offloaded_bytes": Copied.to_host_bytes, "loaded_bytes": Copied.to_device_bytes}
    return Rank.rows.figures() | own


def own_half() -> Any:
    """None on a rank whose memory another one's messenger has, and without a connector."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    if not has_kv_transfer_group():
        return None
    group = get_kv_transfer_group()
    (ours,) = (each for each in getattr(group, "_connectors", [group]) if hasattr(each, "_worker"))
    return ours._worker


def own_messenger() -> Any:
    return getattr(own_half(), "_messenger", None)
