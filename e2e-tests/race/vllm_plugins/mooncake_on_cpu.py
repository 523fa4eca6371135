"""vLLM's MooncakeConnector for servers without a GPU, for comparison; named in ``kv_connector_module_path``.

It asks torch for the index of the accelerator, which raises "Found no NVIDIA driver on your system" if there is none.
It works if this call returns an index; nothing else is changed.
"""

from __future__ import annotations

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector import MooncakeConnector


def no_accelerator() -> int:
    return 0


torch.accelerator.current_device_index = no_accelerator

__all__ = ["MooncakeConnector"]
