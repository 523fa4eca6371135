"""What dividing Kimi-K2's tensors among a trainer's ranks costs: `make share-cost`. Nothing is downloaded."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kv_connector.weights.manifest import Manifest
from kv_connector.weights.shares import Share

HIDDEN, INNER, LAYERS, EXPERTS, VOCABULARY = 7168, 2048, 61, 384, 163_840
ATTENTION = {
    "q_a_proj": (1536, HIDDEN),
    "q_a_layernorm": (1536,),
    "q_b_proj": (64 * 192, 1536),
    "kv_a_proj_with_mqa": (576, HIDDEN),
    "kv_a_layernorm": (512,),
    "kv_b_proj": (64 * 256, 512),
    "o_proj": (HIDDEN, 64 * 128),
}
WRITE_BYTES = 4 << 20


def kimi_k2(layers: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Names, types and shapes of the checkpoint in bfloat16; the first layer has no experts."""
    for name in ("model.embed_tokens", "lm_head"):
        yield f"{name}.weight", "bfloat16", (VOCABULARY, HIDDEN)
    yield "model.norm.weight", "bfloat16", (HIDDEN,)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for name, shape in ATTENTION.items():
            yield f"{prefix}.self_attn.{name}.weight", "bfloat16", shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{name}.weight", "bfloat16", (HIDDEN,)
        experts = ["shared_experts", *(f"experts.{number}" for number in range(EXPERTS))] if layer else [""]
        for expert in experts:
            inner = INNER if expert else 18_432
            place = ".".join(filter(None, (prefix, "mlp", expert)))
            yield f"{place}.gate_proj.weight", "bfloat16", (inner, HIDDEN)
            yield f"{place}.up_proj.weight", "bfloat16", (inner, HIDDEN)
            yield f"{place}.down_proj.weight", "bfloat16", (HIDDEN, inner)
        if layer:
            yield f"{prefix}.mlp.gate.weight", "bfloat16", (EXPERTS, HIDDEN)


def divided(layers: int, count: int) -> str:
    """One line of the table."""
    whole = Manifest.of(kimi_k2(layers))
    split = (True,) * len(whole.places)
    began = time.process_time()
    share = Share.of(whole, split, 0, count)
    own_seconds = time.process_time() - began
    shares = list(share.of_all_ranks())
    all_seconds = time.process_time() - began - own_seconds
    manifests = {id(each.own) for each in shares}
    lengths = [each.own.length_bytes for each in shares]
    writes = [-(-length // WRITE_BYTES) for length in lengths]
    rank = f"{own_seconds:.2f} | {lengths[0] / 1e9:.2f} GB | {writes[0]:,}"
    server = f"{all_seconds:.2f} | {len(manifests)} | {sum(lengths) / 1e9:,.1f} GB | {sum(writes):,}"
    mean = f"{sum(lengths) // sum(writes):,}"
    return f"| {len(split):,} | {whole.length_bytes / 1e12:.2f} TB | {count} | {rank} | {server} | {mean} |"


def main() -> None:
    print(
        "| names | model | ranks | a rank: s | bytes | writes | a server: s | manifests | bytes | writes | mean write |"
    )
    print("|--:" * 11 + "|")
    for layers, count in ((16, 256), (31, 256), *((LAYERS, count) for count in (16, 64, 256, 1024))):
        print(divided(layers, count), flush=True)
    print(f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB in this process")


if __name__ == "__main__":
    main()
