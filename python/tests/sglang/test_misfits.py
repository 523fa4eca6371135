"""Requests that SGLang takes in and cannot hand over end on both sides, before its scheduler meets what ends it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = pytest.mark.usefixtures("sglang_plugins")
ROW = 128
"""How many alternatives to the first token SGLang's row of metadata holds."""


def request_of(tokens: int, alternatives: int | None, samples: int | None = None) -> Any:
    """One of SGLang's; `alternatives` = top_logprobs_num, None = without logprobs; `samples` = n, None = not given."""
    from array import array

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    logprobs = {"return_logprob": alternatives is not None, "top_logprobs_num": alternatives or 0}
    sampling = {} if samples is None else {"n": samples}
    return Req("r", "", array("q", range(tokens)), SamplingParams(**sampling), **logprobs)


def can_be_written(pair: Pair, request: Any) -> bool:
    """Whether SGLang writes a row for this request once it is computed."""
    request.output_ids.append(1)
    request.metadata_buffer_index = 0
    if request.return_logprob:
        count = request.logprob.top_logprobs_num
        request.logprob.output_top_logprobs_val.append([0.0] * count)
        request.logprob.output_top_logprobs_idx.append([1] * count)
    try:
        pair.prefiller.metadata.set_buf(request)
    except RuntimeError:
        return False
    return True


def refusals(pair: Pair, request: Any) -> list[str]:
    """What each side says of it; "" where it goes on."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    from kv_connector.sglang import misfits

    room = pair.next_room()
    request.disagg_kv_sender = sender = pair.sender(room)
    receiver = pair.receiver(room)
    prefills = SimpleNamespace(metadata_buffers=pair.prefiller.metadata)
    decodes = SimpleNamespace(metadata_buffers=pair.decoder.metadata)
    assert misfits.refuse_sending(None, prefills, request) is None, "SGLang's own result stands"
    assert misfits.refuse_receiving(SimpleNamespace(kv_receiver=receiver, req=request), decodes) is None
    reasons = []
    for side in (sender, receiver):
        failed = side.poll() == KVPoll.Failed
        try:
            side.failure_exception()
        except Exception as failure:
            reasons.append(str(failure) if failed else "")
        side.clear()
    return reasons


@pytest.mark.parametrize("alternatives", [None, 0, 1, ROW - 1, ROW, ROW + 1, 150, 512, 1 << 40])
def test_should_refuse_on_both_sides_what_sglangs_row_does_not_hold(pair: Pair, alternatives: int | None) -> None:
    refused = refusals(pair, request_of(7, alternatives))
    fits = alternatives is None or (alternatives < 1 << 30 and can_be_written(pair, request_of(7, alternatives)))
    assert [bool(each) for each in refused] == [not fits, not fits]
    if not fits:
        sentence = f"top_logprobs_num is {alternatives}, expected an integer of at most {ROW}"
        assert all(sentence in each for each in refused)
    pair.assert_nothing_held()


def test_should_refuse_a_prompt_without_tokens_on_both_sides(pair: Pair) -> None:
    assert all("the prompt has 0 tokens, expected at least 1" in each for each in refusals(pair, request_of(0, None)))
    assert refusals(pair, request_of(1, None)) == ["", ""]
    pair.assert_nothing_held()


@pytest.mark.parametrize("samples", [None, 0, 1, 2, 3, 16, 1 << 40])
@pytest.mark.parametrize("tokens", [1, 7])
def test_should_refuse_several_samples_under_one_room_on_both_sides(
    pair: Pair, samples: int | None, tokens: int
) -> None:
    refused = refusals(pair, request_of(tokens, None, samples))
    fits = samples is None or samples <= 1
    assert [bool(each) for each in refused] == [not fits, not fits]
    assert fits or all(f"n is {samples}, expected 1, since" in each for each in refused)
    pair.assert_nothing_held()


def test_should_be_asked_by_sglang_where_it_makes_senders_and_receivers() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    from kv_connector.sglang import misfits
    from kv_connector.sglang.registration import hook_scheduler

    hook_scheduler()
    hooked = {hook: target for target, hooks in HookRegistry._hooks.items() for _kind, hook, _source in hooks}
    assert hooked[misfits.refuse_sending].endswith("PrefillBootstrapQueue.create_sender")
    assert hooked[misfits.refuse_receiving].endswith("DecodePreallocQueue._create_receiver_and_enqueue")
