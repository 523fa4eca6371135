"""Prompts that the connector cuts, of each kind that a client can send: vLLM's own worker takes what is left."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from kv_connector.naming.last_token import STATE
from kv_connector.vllm.misfits import beyond_token_ids
from kv_connector.vllm.prompts import leave_out_last_token

torch = pytest.importorskip("torch", reason="torch comes with the engine: see the suite that has vLLM")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports

KINDS = ("ids", "vectors", "both")
"""Token ids; vectors, as of `/v1/completions`; and a chat's message of words with vectors between them."""


def left_out(request: Any) -> None:
    leave_out_last_token(request, STATE)


def asked_by_another_engine(request: Any) -> None:
    from kv_connector.vllm.offers import cut_to_one_token  # imports vLLM

    cut_to_one_token(request)


CUTS = (left_out, asked_by_another_engine)


def queued(kind: str, tokens: int, seed: int) -> Any:
    """vLLM's own request."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    draw = random.Random(seed)
    ids = [draw.randrange(100) for _ in range(tokens)]
    are_ids = [draw.random() < 0.5 for _ in range(tokens)]
    return Request(
        f"{kind}-{seed}",
        None if kind == "vectors" else ids,
        SamplingParams(max_tokens=5),
        None,
        prompt_embeds=None if kind == "ids" else torch.randn(tokens, 8),
        prompt_is_token_ids=are_ids if kind == "both" else None,
    )


def taken_by_worker(request: Any) -> int:
    """The length of the prompt that vLLM's worker puts into its batch; raises where the engine would end."""
    from vllm.v1.core.sched.output import NewRequestData
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

    sent = NewRequestData.from_request(request, ([1],))
    names = ("req_id", "prompt_token_ids", "mm_features", "sampling_params", "block_ids", "num_computed_tokens")
    state = CachedRequestState(
        **{name: getattr(sent, name) for name in names},
        generator=None,
        output_token_ids=[],
        prompt_embeds=sent.prompt_embeds,
        prompt_is_token_ids=sent.prompt_is_token_ids,
    )
    batch = InputBatch(
        max_num_reqs=2,
        max_model_len=64,
        max_num_batched_tokens=64,
        device=torch.device("cpu"),
        vocab_size=100,
        block_sizes=[16],
        max_num_blocks_per_req=[8],
    )
    index = batch.add_request(state)
    return int(batch.num_prompt_tokens[index])


@pytest.mark.parametrize(("kind", "cut", "tokens"), list(itertools.product(KINDS, CUTS, (2, 16, 17, 33))), ids=str)
def test_should_leave_what_a_worker_takes(kind: str, cut: Callable[[Any], None], tokens: int) -> None:
    for seed in range(3):
        request, whole = queued(kind, tokens, seed), queued(kind, tokens, seed)
        assert taken_by_worker(whole) == tokens
        cut(request)
        kept = request.num_prompt_tokens
        assert 1 <= kept < tokens
        assert taken_by_worker(request) == len(request._all_token_ids) == request.num_tokens == kept
        assert request._all_token_ids == whole._all_token_ids[:kept]
        assert request.max_tokens == 1


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_should_cut_all_that_vllm_keeps_of_each_token(kind: str, cut: Callable[[Any], None]) -> None:
    """Also what a later vLLM may keep: it is known by its length."""
    tokens = 33
    request = queued(kind, tokens, 0)

    def lengths() -> dict[str, int]:
        return {name: len(value) for name, value in vars(request).items() if hasattr(value, "__len__")}

    of_each_token = [name for name, length in lengths().items() if length == tokens]
    assert of_each_token
    cut(request)
    assert {name: lengths()[name] for name in of_each_token} == dict.fromkeys(of_each_token, request.num_prompt_tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_should_know_what_is_no_question_of_another_engine(kind: str) -> None:
    """A messenger asks by token ids; a client may give the fields of a question with any prompt."""
    assert bool(beyond_token_ids(queued(kind, 20, 0))) == (kind != "ids")
