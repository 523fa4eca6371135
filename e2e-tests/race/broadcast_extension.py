"""The worker's part of what trainers do today: a broadcast of each tensor, loaded by vLLM's layerwise reload.

`--worker-extension-cls broadcast_extension.BroadcastWeights`. vLLM mixes the class into its workers, whose methods
`/collective_rpc` calls. The calls are those of vLLM's own NCCLWeightTransferEngine, with gloo in place of NCCL, which
needs a GPU. It also measures for how long a worker is in the calls that load, whichever flow makes them.
"""

from __future__ import annotations

import time
from typing import Any

from gloo_group import broadcast, joined


class BroadcastWeights:
    """Mixed into a worker. Its state is in attributes of names that the worker has not."""

    rank: int
    device: Any
    model_config: Any
    model_runner: Any
    weight_transfer_engine: Any

    def race_stopwatch(self) -> None:
        """Measures from now on; calls that load are vLLM's public ones."""
        self.race_loading = 0.0
        for owner, name in ((self.weight_transfer_engine, "update_weights"), (self.model_runner, "reload_weights")):
            setattr(owner, name, self._race_timed(getattr(owner, name)))

    def race_loaded(self) -> float:
        """The seconds since the last call."""
        seconds, self.race_loading = self.race_loading, 0.0
        return seconds

    def race_join(self, host: str, port: int, own: str, rank_count: int) -> None:
        self.race_group = joined(host, port, own, 1 + self.rank, rank_count)

    def race_start(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        self._race_timed(initialize_layerwise_reload)(self.model_runner.get_model())

    def race_receive(self, names: list[str], dtype_names: list[str], shapes: list[list[int]]) -> None:
        import torch

        model = self.model_runner.get_model()
        load = self._race_timed(model.load_weights)
        with torch.no_grad(), torch.device(self.device):
            for name, dtype_name, shape in zip(names, dtype_names, shapes, strict=True):
                weight = torch.empty(shape, dtype=getattr(torch, dtype_name), device="cpu")
                broadcast(self.race_group, weight)
                load([(name, weight)])

    def race_finish(self) -> None:
        import torch
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with torch.no_grad(), torch.device(self.device):
            self._race_timed(finalize_layerwise_reload)(self.model_runner.get_model(), self.model_config)

    def _race_timed(self, call: Any) -> Any:
        def timed(*given: Any, **named: Any) -> Any:
            begun = time.monotonic()
            try:
                return call(*given, **named)
            finally:
                self.race_loading += time.monotonic() - begun

        return timed
