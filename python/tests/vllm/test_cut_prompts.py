"""Prompts that the connector cuts, of each kind that a client can send: vLLM's own worker takes what is left."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from kv_connector.naming.last_token import STATE
from kv_connector.vllm.beginnings import fitting
from kv_connector.vllm.kv_groups import STATE_PAGE_TOKENS, KvGroup
from kv_connector.vllm.misfits import beyond_token_ids
from kv_connector.vllm.prompts import leave_out_last_token
from kv_connector.vllm.transfer_params import Receive, Refused, Send

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


GROUPS = (KvGroup(("attention",), 16), KvGroup(("state",), STATE_PAGE_TOKENS, state=True))
START, END, PAD = 90, 91, 92
GRID_TOKENS = 6
"""Of a frame: two rows of three."""
FRAMES = (1, 2, 3)
AROUND = (0, 1, 2, 17)


def with_media(modality: str, before: int, frames: int, behind: int) -> Any:
    """A request with an image, or a video of so many frames, between words."""
    from vllm.multimodal.inputs import (
        MultiModalFeatureSpec,
        MultiModalFieldElem,
        MultiModalKwargsItem,
        PlaceholderRange,
    )
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    frame = [PAD] * GRID_TOKENS if modality == "image" else [START, *[PAD] * GRID_TOKENS, END]
    grid = MultiModalFieldElem(torch.tensor([frames, 4, 6]), field=None)
    feature = MultiModalFeatureSpec(
        data=MultiModalKwargsItem({f"{modality}_grid_thw": grid}),
        modality=modality,
        identifier="seen",
        mm_position=PlaceholderRange(offset=before, length=len(frame) * frames),
        mm_hash="seen",
    )
    ids = [*range(before), *frame * frames, *range(behind)]
    return Request("media", ids, SamplingParams(max_tokens=5), None, mm_features=[feature])


def positions_in_worker(request: Any) -> Any:
    """As vLLM's worker computes them for Qwen3-VL and Qwen3.5; raises where their engine would end."""
    from types import SimpleNamespace

    from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration

    config: Any = SimpleNamespace(
        video_token_id=PAD,
        vision_start_token_id=START,
        vision_end_token_id=END,
        vision_config=SimpleNamespace(spatial_merge_size=2),
    )
    positions, _ = Qwen3VLForConditionalGeneration._get_mrope_input_positions(
        request.prompt_token_ids, request.mm_features, config
    )
    return positions


@pytest.mark.parametrize(("before", "behind"), list(itertools.product(AROUND, AROUND)))
@pytest.mark.parametrize(("modality", "frames"), [("image", 1), *(("video", frames) for frames in FRAMES)])
def test_should_cut_only_behind_images_and_videos(modality: str, frames: int, before: int, behind: int) -> None:
    """Both sides refuse the others, and a prompt that was cut once is not refused for its new end."""
    request, whole = (with_media(modality, before, frames, behind) for _ in range(2))
    asks = (Send("t", "b"), Receive("t", (), "", decoder_first=False))
    for ask in asks:
        found = fitting(ask, request, GROUPS)
        assert isinstance(found, Refused) == (behind == 0)
        if isinstance(found, Refused):
            assert (
                f"this prompt of {len(whole.prompt_token_ids)} tokens ends with an image, a video or a" in found.reason
            )
            assert found.unfit is (ask if isinstance(ask, Receive) else None)
        assert fitting(ask, request, GROUPS[:1]) is ask, "without state nothing is cut"
    if behind:
        kept = leave_out_last_token(request, STATE)
        assert torch.equal(positions_in_worker(request), positions_in_worker(whole)[:, :kept])
        assert fitting(asks[0], request, GROUPS, is_cut=True) is asks[0]


@pytest.mark.parametrize("frames", FRAMES)
def test_should_know_that_vllm_ends_where_a_video_is_cut(frames: int) -> None:
    """The reason for the refusal; without it there is none."""
    request = with_media("video", 5, frames, 0)
    leave_out_last_token(request, STATE)
    with pytest.raises(ValueError, match="is not in list"):
        positions_in_worker(request)
