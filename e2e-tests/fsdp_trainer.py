"""One rank of a trainer whose model FSDP2 has split: it sends its rows of each folder that it is named on its input.

`fsdp_trainer.py RANK RANKS STORE URL…`. Each line of the input is JSON: `folder`, `version`, `dies_before` a step or
"". Each line of the output is JSON: `failure`, `bytes` that this rank has sent, `whole` of the model, `gathered`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from kv_connector.exceptions import WeightsError
from kv_connector.weights.fsdp import FsdpWeightTransfer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

GATHERED: list[str] = []


def die_before(name: str, transfer: Any) -> None:
    """This process is killed before a step of the transfer of that name; "" is none."""
    goes_on = type(transfer)._together

    def together(step: Callable[[], Any]) -> Any:
        if getattr(getattr(step, "func", step), "__name__", "") == name:
            os.kill(os.getpid(), signal.SIGKILL)
        return goes_on(transfer, step)

    transfer._together = together


def split_model(folder: Path, ranks: int) -> Any:
    """The model of a folder; each rank has rows of its tensors."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def counted(gather: Callable[..., Any]) -> Callable[..., Any]:
    def counting(*given: Any, **named: Any) -> Any:
        GATHERED.append("whole tensor")
        return gather(*given, **named)

    return counting


def main() -> None:
    rank, ranks, store, *urls = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks))
    DTensor.full_tensor = counted(DTensor.full_tensor)
    DTensor.redistribute = counted(DTensor.redistribute)
    transfer = FsdpWeightTransfer(urls)
    for line in sys.stdin:
        asked = json.loads(line)
        model = split_model(Path(asked["folder"]), int(ranks))
        die_before(asked["dies_before"], transfer)
        transfer._versions._last = asked["version"] - 1
        transfer._versions._timed = False
        failure = ""
        try:
            transfer.send_weights(model.named_parameters())
        except WeightsError as failed:
            failure = str(failed)
        own = sum(each.to_local().nbytes for each in model.parameters())
        whole = sum(each.numel() * each.element_size() for each in model.parameters())
        print(json.dumps({"failure": failure, "bytes": own, "whole": whole, "gathered": len(GATHERED)}), flush=True)


if __name__ == "__main__":
    main()
