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

VOCABULARY = 512
SCHEDULER = SimpleNamespace(
    model_config=SimpleNamespace(hf_text_config=SimpleNamespace(vocab_size=VOCABULARY), vocab_size=16)
)
"""Of a model whose head has fewer tokens than its embedding, as one that paints."""


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
    prefills = SimpleNamespace(metadata_buffers=pair.prefiller.metadata, scheduler=SCHEDULER)
    decodes = SimpleNamespace(metadata_buffers=pair.decoder.metadata, scheduler=SCHEDULER)
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


@pytest.mark.parametrize(
    "token", [-(1 << 63), -1, 0, VOCABULARY - 1, VOCABULARY, VOCABULARY + 1, 1 << 31, (1 << 63) - 1]
)
@pytest.mark.parametrize("place", [0, 3, 6])
def test_should_refuse_tokens_that_the_model_has_not(pair: Pair, token: int, place: int) -> None:
    """Its embedding has no row for them, and the pass that computes them ends SGLang's scheduler."""
    fits, sentence = 0 <= token < VOCABULARY, f"input_ids has the token {token}, expected integers from 0 to 511"
    asked = asked_for()
    asked.origin_input_ids[place] = token
    for side in ("prefill", "decode"):
        reason = answer_at_the_door(pair, side, asked)
        assert (reason is None) == fits, side
        assert fits or (int(reason.status_code), sentence in reason.message) == (400, True)
    request = request_of(7, None)
    request.origin_input_ids[place] = token
    refused = refusals(pair, request)
    assert [sentence in each for each in refused] == [not fits, not fits]
    pair.assert_nothing_held()


@pytest.mark.parametrize("field", ["multimodal_inputs", "input_embeds", "positional_embed_overrides", "lora_id"])
def test_should_leave_ids_that_stand_for_something_else_to_sglang(pair: Pair, field: str) -> None:
    asked = asked_for()
    asked.origin_input_ids[3] = 1 << 40
    setattr(asked, field, object())
    assert answer_at_the_door(pair, "prefill", asked) is None


@pytest.mark.parametrize("with_logprobs", [False, True])
@pytest.mark.parametrize("start", [-(1 << 40), -8, -7, -2, -1, 0, 3, 6])
def test_should_refuse_logprobs_from_a_negative_place_on(pair: Pair, start: int, with_logprobs: bool) -> None:
    """SGLang asserts, behind the forward pass, that there are as many as from that place on."""
    request = request_of(7, 0 if with_logprobs else None)
    request.logprob_start_len = start
    refused = refusals(pair, request)
    fits = start >= -1 or not with_logprobs
    assert [bool(each) for each in refused] == [not fits, not fits]
    assert fits or all(f"logprob_start_len is {start}, expected" in each for each in refused)
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


FIELDS: dict[str, dict[str, list[Any]]] = {
    "bootstrap_room": {
        "prefill decode": [None, True, 0, -1, 1 << 64, 10**5000, 1.5, "", "7", [1], {"room": 1}],
    },
    "bootstrap_host": {
        "decode": [None],
        "prefill decode": [7, 1.5, "", "a b", "hö", "h" * 300, ["h"], {"host": "h"}],
    },
    "bootstrap_port": {"prefill decode": [None, 0, -1, 65536, 1 << 70, 1.5, "", "port", [9], {"port": 9}]},
    "disagg_prefill_dp_rank": {"prefill decode": [True, -1, 1 << 70, 1.5, "0", [0]]},
}
CASES = [
    (side, field, value)
    for field, by_sides in FIELDS.items()
    for sides, values in by_sides.items()
    for side in sides.split()
    for value in values
]


def asked_for(tokens: int = 7, alternatives: int | None = None, samples: int | None = None, **fields: Any) -> Any:
    request = request_of(tokens, alternatives, samples)
    right = {"bootstrap_host": "127.0.0.1", "bootstrap_port": 9, "bootstrap_room": 7, "disagg_prefill_dp_rank": None}
    for name, value in {**right, **fields}.items():
        setattr(request, name, value)
    return request


def answer_at_the_door(pair: Pair, side: str, request: Any, **more: bool) -> Any:
    """What SGLang's own queue does with it: the reason for which it is answered at once; None where it is taken in."""
    from sglang.srt.disaggregation.decode import DecodePreallocQueue
    from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue

    from kv_connector.sglang.registration import hook_scheduler

    hook_scheduler()
    retired: list[Any] = []
    own = {"prefill": pair.prefiller, "decode": pair.decoder}[side]
    taken = {"create_sender": lambda *_: False, "_check_if_req_exceed_kv_capacity": lambda _: True}
    queue = SimpleNamespace(
        kv_manager=own.endpoint,
        metadata_buffers=own.metadata,
        scheduler=SimpleNamespace(retire_unadmitted_request=retired.append, model_config=SCHEDULER.model_config),
        **taken,
    )
    if side == "prefill":
        PrefillBootstrapQueue.add(queue, request, 4)
    else:
        DecodePreallocQueue.add(queue, request, **more)
    assert retired in ([], [request])
    return request.to_finish if retired else None


@pytest.mark.parametrize(
    ("side", "field", "value"), CASES, ids=lambda each: each[:20] if isinstance(each, str) else type(each).__name__
)
def test_should_answer_400_to_a_field_of_a_client_that_no_pair_can_serve(
    pair: Pair, side: str, field: str, value: Any
) -> None:
    reason = answer_at_the_door(pair, side, asked_for(**{field: value}))
    assert reason is not None, "it was taken in"
    named = "data-parallel rank" if field == "disagg_prefill_dp_rank" else field
    assert (int(reason.status_code), named in reason.message, ", expected " in reason.message) == (400, True, True)


@pytest.mark.parametrize("rank", [1, 2, 3, 7, 65535])
def test_should_answer_400_on_both_sides_to_a_rank_that_the_prefiller_has_not(pair: Pair, rank: int) -> None:
    """Its decoder knows that only by the prefiller's topology, behind its door."""
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.utils import prepare_abort

    from kv_connector.sglang import misfits

    sentence = f"the prefiller's data-parallel rank is {rank}, expected an integer of 0 to 0, as its --dp-size is 1"
    reason = answer_at_the_door(pair, "prefill", asked_for(disagg_prefill_dp_rank=rank))
    assert reason is not None, "it waits for a decoder that asks another rank"
    assert (int(reason.status_code), sentence in reason.message) == (400, True)
    assert answer_at_the_door(pair, "decode", asked_for(disagg_prefill_dp_rank=rank)) is None
    receiver, endpoint = pair.new_receiver(pair.next_room()), pair.decoder.endpoint
    until(lambda: endpoint.try_ensure_parallel_info(pair.address), "the prefiller is known")
    receiver.init(rank)
    until(lambda: receiver.poll() == KVPoll.Failed, "it is refused")
    request = asked_for()
    with pytest.raises(Exception, match="the prefiller's data-parallel rank is"):
        receiver.failure_exception()
    prepare_abort(request, "SGLang's own", status_code=500)
    queue = SimpleNamespace(queue=[SimpleNamespace(kv_receiver=receiver, req=request)])
    misfits.answer_mistakes(None, queue)
    assert (int(request.finished_reason.status_code), sentence in request.finished_reason.message) == (400, True)
    receiver.ensure_abort_notified(force_arm=True)
    receiver.clear()
    until(lambda: endpoint.prefillers.late_declines.poll() or not endpoint.prefillers.late_declines.count(), "declined")
    pair.assert_nothing_held()


def test_should_ask_for_the_topology_again_before_it_refuses_a_rank(pair: Pair) -> None:
    """A prefiller that was started again may have more of them."""
    from concurrent.futures import Future

    from one_process import until, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    receiver, endpoint = pair.new_receiver(pair.next_room()), pair.decoder.endpoint
    until(lambda: endpoint.try_ensure_parallel_info(pair.address), "the prefiller is known")
    known, now = endpoint.prefill_info_table[pair.address], SimpleNamespace(dp_size=3)
    now = type(known)(**{**vars(known), "dp_size": 3})
    answer: Future[Any] = Future()
    endpoint.ask_again = lambda _: answer
    asked: list[int] = []
    find = endpoint.prefillers.find
    endpoint.prefillers.find = lambda address, places: (
        asked.append(places[0].dp_rank) or find(address, [first_of(places)])
    )
    try:
        receiver.init(2)
        assert receiver.poll() == KVPoll.Bootstrapping
        answer.set_result(now)
        wait_for(receiver, KVPoll.WaitingForInput)
    finally:
        del endpoint.ask_again, endpoint.prefillers.find
        endpoint.learn(pair.address, known)
    assert asked == [2]
    assert not receiver.mistake
    receiver.abort()
    receiver.clear()
    pair.assert_nothing_held()


def first_of(places: Any) -> Any:
    import dataclasses

    return dataclasses.replace(places[0], dp_rank=0)


@pytest.mark.parametrize(
    ("count", "own", "named"), [(2, 0, 1), (2, 1, 0), (4, 3, 0), (2, 0, None), (2, 1, 1), (1, 0, 0)]
)
def test_should_refuse_at_a_prefillers_rank_what_its_decoder_seeks_at_another(
    count: int, own: int, named: int | None
) -> None:
    from kv_connector.sglang.client_fields import other_rank_fault

    fault = other_rank_fault(named, count, own)
    assert bool(fault) == (named not in (None, own))
    assert not fault or f"rank is {named}, where decoders look for the request, and it came to rank {own}" in fault


@pytest.mark.parametrize("n", [None, True, False, 0, 1, -1, 0.5, 1.0, 1.5, 2.0, float("nan"), "1", "", [], [1], {}])
def test_should_take_in_the_number_of_samples_that_sglang_serves_as_one(pair: Pair, n: Any) -> None:
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    try:
        asked = GenerateReqInput(input_ids=[5, 6, 7], sampling_params={"n": n})
        asked.normalize_batch_and_arguments()
        SamplingParams(n=n).verify(1000)
    except Exception:
        return  # SGLang's own server answers that, with this backend and without
    for side in ("prefill", "decode"):
        reason = answer_at_the_door(pair, side, asked_for(samples=n))
        assert (reason is None) == asked.is_single, f"{side}: {reason and reason.message}"


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"tokens": 0}, "the prompt has 0 tokens"),
        ({"alternatives": ROW + 1}, "top_logprobs_num is 129"),
        ({"samples": 2}, "n is 2"),
        ({"alternatives": 0, "logprob_start_len": -7}, "logprob_start_len is -7"),
    ],
)
def test_should_answer_400_to_what_a_row_or_a_room_does_not_hold(
    pair: Pair, side: str, asked: dict[str, int], sentence: str
) -> None:
    reason = answer_at_the_door(pair, side, asked_for(**asked))
    assert reason is not None
    assert (int(reason.status_code), reason.message.startswith(sentence)) == (400, True)


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize(
    "fields", [{}, {"bootstrap_host": "::1"}, {"disagg_prefill_dp_rank": 0}, {"bootstrap_port": 65535}]
)
def test_should_take_in_what_it_can_hand_over(pair: Pair, side: str, fields: dict[str, Any]) -> None:
    assert answer_at_the_door(pair, side, asked_for(**fields)) is None


def test_should_need_no_address_at_a_prefiller(pair: Pair) -> None:
    assert answer_at_the_door(pair, "prefill", asked_for(bootstrap_host=None)) is None


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_should_leave_alone_what_has_no_decoder_or_was_taken_in_before(pair: Pair, side: str) -> None:
    """SGLang's warm-up, a request that it refuses itself, and those that come back with what they have."""
    from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST

    warm_up = asked_for(bootstrap_host=FAKE_BOOTSTRAP_HOST, bootstrap_room=None)
    assert answer_at_the_door(pair, side, warm_up) is None
    refused = asked_for(samples=2)
    refused.set_finish_with_abort("SGLang's own reason")
    assert answer_at_the_door(pair, side, refused).message == "SGLang's own reason"
    again = asked_for(bootstrap_room=0)
    again.is_retracted = True
    assert answer_at_the_door(pair, side, again) is None
    assert (again.to_finish, len(again.origin_input_ids)) == (None, 7)
    if side == "decode":
        computed_again = asked_for(bootstrap_room=0)
        assert answer_at_the_door(pair, side, computed_again, is_rebootstrap=True) is None
        assert computed_again.to_finish is None
