"""A retracted request is computed again by its prefiller, whatever is still open there, or ends with a sentence."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = pytest.mark.usefixtures("sglang_plugins")
ADAPTERS = {None: None, "4f1e": "poems", "77aa": "/adapters/laws"}
"""By the id that this engine's SGLang has drawn: the name that clients know."""


def retracted(rid: str = "r", prompt: int = 3, answered: int = 0, **more: Any) -> Any:
    """One of SGLang's requests, after ``pause_generation``."""
    from array import array

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling = SamplingParams(max_new_tokens=64, temperature=0.0)
    sampling.normalize(None)
    request = Req(rid, "", array("q", range(5, 5 + prompt)), sampling, **more)
    request.output_ids.extend(range(100, 100 + answered))
    request.pd_rebootstrap_in_progress = True
    request.bootstrap_host, request.bootstrap_port, request.bootstrap_room = "127.0.0.1", 9, 7
    return request


def scheduler() -> Any:
    refs = {number: SimpleNamespace(lora_name=name) for number, name in ADAPTERS.items() if number}
    runner = SimpleNamespace(lora_manager=SimpleNamespace(lora_refs=refs))
    return SimpleNamespace(tp_worker=SimpleNamespace(model_runner=runner))


def asked(request: Any) -> dict[str, Any]:
    """What the prefiller's HTTP server is sent, by way of the hook."""
    from kv_connector.sglang import recomputes
    from kv_connector.sglang.receiver import Receiver

    sent: list[dict[str, Any]] = []
    manager = SimpleNamespace(submit_prefill_recompute=lambda _receiver, payload: sent.append(payload))
    queue = SimpleNamespace(scheduler=scheduler(), kv_manager=manager)
    receiver = Receiver.__new__(Receiver)
    recomputes.ask_again(
        lambda *_: pytest.fail("SGLang's own"), queue, SimpleNamespace(kv_receiver=receiver, req=request)
    )
    (payload,) = sent
    return payload


class HttpServer:
    """SGLang's own book of the requests that its HTTP server has."""

    def __init__(self) -> None:
        from sglang.srt.disaggregation.utils import DisaggregationMode

        self.book = SimpleNamespace(rid_to_state={}, enable_trace=False, disaggregation_mode=DisaggregationMode.PREFILL)

    def take(self, payload: dict[str, Any]) -> Any:
        from sglang.srt.managers.io_struct import GenerateReqInput
        from sglang.srt.managers.tokenizer_manager import TokenizerManager

        request = GenerateReqInput(**payload)
        request.normalize_batch_and_arguments()
        TokenizerManager._init_req_state(self.book, request)
        return request

    def end(self, rid: str) -> None:
        del self.book.rid_to_state[rid]


@pytest.mark.parametrize("rid", ["r", "cmpl-1", "r#again-1", "id with spaces/ü", "x" * 300])
@pytest.mark.parametrize("still_open", list(itertools.product([False, True], repeat=3)))
def test_should_be_taken_while_earlier_legs_are_open(rid: str, still_open: tuple[bool, ...]) -> None:
    """The first leg, and those of earlier pauses: each may have ended by the next pause or not."""
    server = HttpServer()
    request = retracted(rid)
    leg = server.take({**request.build_rebootstrap_payload()}).rid
    assert leg == rid
    for pause, is_open in enumerate(still_open):
        if not is_open:
            server.end(leg)
        request.output_ids.append(200 + pause)
        taken = server.take(asked(request))
        assert taken.input_ids == [*request.origin_input_ids, *request.output_ids]
        assert taken.rid.startswith(rid), "SGLang aborts by the beginning of an id"
        leg = taken.rid


@pytest.mark.parametrize("extra_key", [None, "tenant"])
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize(("prompt", "answered"), [(1, 0), (3, 0), (3, 1), (16, 17)])
def test_should_name_the_prompt_on_both_sides_alike(
    prompt: int, answered: int, adapter: str | None, extra_key: str | None
) -> None:
    from kv_connector.sglang.prompt_name import digest_of

    request = retracted("r", prompt, answered, lora_id=adapter, extra_key=extra_key)
    taken = HttpServer().take(asked(request))
    assert taken.lora_path == ADAPTERS[adapter], "the prefiller's KV would be another adapter's"
    assert taken.extra_key == extra_key, "the client's own"
    at_prefiller = retracted("q", 0)
    at_prefiller.origin_input_ids, at_prefiller.pd_rebootstrap_in_progress = taken.input_ids, False
    names = [digest_of(request, adapter=str(ADAPTERS[adapter])), digest_of(at_prefiller, adapter=str(taken.lora_path))]
    assert names[0] == names[1]


def test_should_leave_an_adapter_that_is_gone_to_the_comparison_of_prompts() -> None:
    assert "lora_path" not in asked(retracted(lora_id="gone"))


KINDS = {
    "images or sounds": {"multimodal_inputs": object()},
    "vectors in place of tokens": {"input_embeds": [[0.5]]},
    "vectors in place of some tokens": {"positional_embed_overrides": object()},
}


@pytest.mark.parametrize("kind", KINDS)
def test_should_end_at_once_what_token_ids_do_not_name(pair: Pair, kind: str) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    from kv_connector.sglang import recomputes

    room, request = pair.next_room(), retracted()
    for name, value in KINDS[kind].items():
        setattr(request, name, value)
    receiver, endpoint = pair.receiver(room), pair.decoder.endpoint
    receiver.send_metadata(pages(9), 4, decode_prefix_len=0)
    waiting = SimpleNamespace(kv_receiver=receiver, req=request)
    queue = SimpleNamespace(scheduler=scheduler(), kv_manager=endpoint)
    recomputes.ask_again(lambda *_: pytest.fail("SGLang's own"), queue, waiting)
    assert receiver.poll() == KVPoll.Failed
    with pytest.raises(Exception, match=f"the prompt has {kind}, expected token ids alone"):
        receiver.failure_exception()
    receiver.ensure_abort_notified(force_arm=True)
    until(lambda: endpoint.is_abort_release_safe(room, 1), "the pages are safe")
    receiver.clear()
    pair.assert_nothing_held()


def test_should_leave_requests_of_other_backends_to_sglang() -> None:
    from kv_connector.sglang import recomputes

    waiting = SimpleNamespace(kv_receiver=object(), req=retracted())
    assert recomputes.ask_again(lambda queue, given: (queue, given), "queue", waiting) == ("queue", waiting)


def test_should_be_asked_by_sglang_of_each_retracted_request() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    from kv_connector.sglang import recomputes
    from kv_connector.sglang.registration import hook_scheduler

    hook_scheduler()
    assert any(hook is recomputes.ask_again for _kind, hook, _source in HookRegistry._hooks[recomputes.ASKS])
