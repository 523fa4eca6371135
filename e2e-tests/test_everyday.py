"""Ordinary traffic gets ordinary answers: those of a single vLLM, whatever else is asked meanwhile.

Prefix caching is on at both sides, prompts of a group share their beginnings, and the legs come in all orders. What a
decoder keeps of a beginning answers later requests too: they are asked as well, without any transfer.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from bed import PREFILL_LEG, Messenger, decoder, messenger, prefiller, send_prefill, start_messengers
from clients import Client, failed, faults_of, faults_of_groups
from conftest import Reference
from faults import Clients, granted_without_prefill
from server_process import REQUEST_LIMIT_SECONDS, complete, greedy_completion, wait_until, words_of
from traffic import ANSWER_TOKENS, CHUNK_TOKENS, PAGE_TOKENS, Asked, Order, Traffic
from workload import IDS

NOTHING_HELD_SECONDS = 10.0
GRANT_WAIT_SECONDS = 30.0
"""Beyond NOTHING_HELD_SECONDS, so that what a limit frees is not taken for freed in time."""
HELD_BY_A_PREFILL = ("kv_messenger_prefills_open", "vllm:kv_cache_usage_perc")
"""What a finished prefill holds that no decoder has asked for."""
WAITED_IN_VAIN = re.compile(r"no grant for transfer cmpl-(\S+)-0(?:#\d+)? came within \d+ ms of the end of its prefill")
"""How a prefiller says that it held a prompt for the whole of grant_wait_seconds. The group is the X-Request-ID."""
LONG_ID = 600


@pytest.fixture(scope="module")
def reference(everyday_reference: Reference) -> Reference:
    return everyday_reference


@pytest.fixture(scope="module")
def pair(model: Path, run_folder: Path) -> Iterator[tuple[Messenger, Messenger]]:
    """Small pages and chunks, so that short prompts have several of both."""
    arguments = ("--max-num-batched-tokens", str(CHUNK_TOKENS))
    options = {"page_tokens": PAGE_TOKENS, "arguments": arguments}
    extra = {"grant_wait_seconds": GRANT_WAIT_SECONDS}
    logged = {**options, "arguments": (*arguments, "--enable-log-requests")}
    with ExitStack() as stack:
        source = messenger(prefiller("prefiller-daily", extra=extra, options=options), model, run_folder)
        target = messenger(decoder("decoder-daily", options=logged), model, run_folder)
        start_messengers(stack, [source, target])
        yield source, target


@dataclass(frozen=True)
class AfterTraffic:
    """What is seen some seconds after the last answer."""

    faults: list[str]
    """What was wrong with the answers."""
    held: Mapping[str, Mapping[str, float]]
    """By server: what is not free."""
    left: Mapping[str, Asked]
    """The requests whose clients went away."""

    def unheard(self, decoder: Messenger) -> dict[str, Asked]:
        """Those whose decode leg the decoder's API server has lost with its client, before it read the request.

        Nothing can tell the prefiller of these. All others stand in the decoder's log, as requests or as rejected.
        """
        log = decoder.server.log()
        return {request: asked for request, asked in self.left.items() if request not in log}


@pytest.fixture(scope="module")
def after_traffic(pair: tuple[Messenger, Messenger], traffic: Traffic, reference: Reference) -> AfterTraffic:
    source, target = pair
    client = Client(source, target)
    faults = faults_of_groups(client, traffic.groups, reference)
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not any(side.held() for side in pair), NOTHING_HELD_SECONDS, "nothing is held")
    held = {side.server.name: held for side in pair if (held := side.held())}
    return AfterTraffic(faults, held, client.left)


def test_answers_are_those_of_a_single_vllm(
    after_traffic: AfterTraffic, traffic: Traffic, pair: tuple[Messenger, Messenger]
) -> None:
    faults = after_traffic.faults
    arrived = pair[1].metric("kv_messenger_fetches_arrived_total")
    print(f"everyday traffic: seed {traffic.seed}, {traffic.count} requests, {arrived:.0f} transfers arrived")
    for fault in faults:
        print(fault)
    assert not faults, f"{len(faults)} answers are wrong, seed {traffic.seed}"
    assert arrived >= traffic.count / 2, "most answers did not come from transferred KV: the comparison shows little"


def test_nothing_is_held_afterwards(after_traffic: AfterTraffic, pair: tuple[Messenger, Messenger]) -> None:
    """But prompts of which the decoder cannot have heard, and these not beyond their limit."""
    source, target = pair
    unheard = after_traffic.unheard(target)
    print(f"{len(after_traffic.left)} clients went away, {len(unheard)} before the decoder had read their request")
    prompts = sum(len(asked.prompts) for asked in unheard.values())
    held = after_traffic.held
    assert held.keys() <= {source.server.name}, held
    of_prefiller = held.get(source.server.name, {})
    assert of_prefiller.get("kv_messenger_prefills_open", 0.0) <= prompts, (held, unheard)
    assert of_prefiller.keys() <= (set(HELD_BY_A_PREFILL) if prompts else set()), (held, unheard)
    for side in pair:
        side.wait_at_rest()


def test_no_prompt_is_waited_for_in_vain_that_its_decoder_heard_of(
    after_traffic: AfterTraffic, pair: tuple[Messenger, Messenger]
) -> None:
    """Of all the traffic: the prefiller says so of each, and by now of the last one too."""
    source, target = pair
    source.wait_at_rest()
    in_vain = set(WAITED_IN_VAIN.findall(source.server.log()))
    assert in_vain <= after_traffic.unheard(target).keys(), "the decoder heard of them, and did not tell the prefiller"


@pytest.mark.usefixtures("after_traffic")
def test_what_the_decoder_keeps_of_each_beginning_is_right(
    pair: tuple[Messenger, Messenger], traffic: Traffic, reference: Reference
) -> None:
    target = pair[1].server
    cached_before = target.metric("vllm:prefix_cache_hits_total")
    wrong = [
        f"group of request {group.requests[0].number}, a beginning of {len(group.beginning.split())} tokens"
        for group in traffic.groups
        if words_of(complete(target, group.afterwards(), ANSWER_TOKENS))
        != reference.to(group.afterwards(), ANSWER_TOKENS)
    ]
    assert target.metric("vllm:prefix_cache_hits_total") > cached_before, "its pages were not looked at again"
    assert not wrong, f"{len(wrong)} of {len(traffic.groups)} beginnings are kept wrong, seed {traffic.seed}: {wrong}"


@pytest.fixture(scope="module")
def plain(pair: tuple[Messenger, Messenger]) -> Iterator[Callable[..., Asked]]:
    """Makes requests with prompts that no other test sends."""
    prompts = iter(IDS.prompts())
    yield lambda order, choices=1: Asked(0, (next(prompts),), choices, False, order, None)
    for side in pair:
        side.wait_at_rest()


@pytest.mark.parametrize("order", Order)
def test_several_answers_to_one_prompt_are_right(
    pair: tuple[Messenger, Messenger], plain: Callable[..., Asked], reference: Reference, order: Order
) -> None:
    asked = plain(order, choices=2)
    answer = Client(*pair).ask(asked)
    assert answer is not None
    assert not faults_of(asked, answer, reference)


def test_two_clients_with_one_id_never_get_each_others_tokens(
    pair: tuple[Messenger, Messenger], plain: Callable[..., Asked], reference: Reference
) -> None:
    """Their prompts are equally long. One of them may fail, since both say that they are the same request."""
    request, client = f"all-clients-{uuid.uuid4()}", Client(*pair)
    both = [plain(Order.TOGETHER), plain(Order.TOGETHER)]
    with ThreadPoolExecutor(2) as clients:
        answers = list(clients.map(lambda asked: client.ask(asked, request), both))
    wrong = [
        fault
        for asked, answer in zip(both, answers, strict=True)
        if answer is not None and not failed(answer)
        for fault in faults_of(asked, answer, reference)
    ]
    assert not wrong
    again = plain(Order.TOGETHER)
    answer = client.ask(again)
    assert answer is not None
    assert not faults_of(again, answer, reference)


@pytest.mark.parametrize("order", Order)
def test_id_of_a_request_that_has_ended_serves_again(
    pair: tuple[Messenger, Messenger], plain: Callable[..., Asked], reference: Reference, order: Order
) -> None:
    request, client = f"again-{uuid.uuid4()}", Client(*pair)
    for asked in (plain(order), plain(order)):
        answer = client.ask(asked, request)
        assert answer is not None
        assert not faults_of(asked, answer, reference)


def test_very_long_id_harms_no_other_request(
    pair: tuple[Messenger, Messenger], plain: Callable[..., Asked], reference: Reference
) -> None:
    """The other one's pages are granted already, and its prefill begins only when the long one has ended."""
    source, target = pair
    (prompt,) = plain(Order.TOGETHER).prompts
    lost_before = target.metric("kv_messenger_links_lost_total")
    with ThreadPoolExecutor(1) as pool:
        bystander = granted_without_prefill(Clients(pool), source, target, prompt, ANSWER_TOKENS)
        long = plain(Order.TOGETHER)
        answer = Client(source, target).ask(long, "x" * LONG_ID)
        assert answer is not None
        assert failed(answer) or not faults_of(long, answer, reference)
        assert not bystander.decode.done(), bystander.decode.result()
        send_prefill(source, prompt, bystander.name)
        assert bystander.ended(REQUEST_LIMIT_SECONDS).words == reference.to(prompt, ANSWER_TOKENS)
    assert target.metric("kv_messenger_links_lost_total") == lost_before


@pytest.mark.parametrize("name", ["x" * 1_100_000, "é" * 200_000], ids=["longer than a poll", "longer once escaped"])
def test_request_id_of_any_length_holds_nothing(
    pair: tuple[Messenger, Messenger], plain: Callable[..., Asked], reference: Reference, name: str
) -> None:
    """A client sets it in the body. Each event about the request would repeat it, and the one that ends it be lost."""
    source, target = pair
    (prompt,) = plain(Order.TOGETHER).prompts
    arrived_before = target.metric("kv_messenger_fetches_arrived_total")
    body = {**greedy_completion(prompt, 1), "request_id": name, "kv_transfer_params": PREFILL_LEG}
    leg = source.server.post("/v1/completions", body)["kv_transfer_params"]
    body = {**greedy_completion(prompt, ANSWER_TOKENS), "request_id": name, "kv_transfer_params": leg}
    assert words_of(target.server.post("/v1/completions", body)) == reference.to(prompt, ANSWER_TOKENS)
    assert target.metric("kv_messenger_fetches_arrived_total") == arrived_before + 1
    for side in pair:
        side.wait_at_rest()
        assert side.metric("kv_messenger_events_dropped_total") == 0
