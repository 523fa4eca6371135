"""``--enable-kv-cache-sharding``: the ranks of a prefiller divide the pages of latent KV; SGLang's own pools of it.

Every byte of the decoder's pages is compared with the KV that the prefiller's ranks computed, and that of other pages
with what it was.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from page_shares_pair import DividedPair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

SHAPES = {
    "TP 2 to 2": ({"tp_size": 2}, {"tp_size": 2}),
    "TP 4 to 4": ({"tp_size": 4}, {"tp_size": 4}),
    "TP 4 to 2": ({"tp_size": 4}, {"tp_size": 2}),
    "TP 2 to 4": ({"tp_size": 2}, {"tp_size": 4}),
    "TP 2 to 1": ({"tp_size": 2}, {"tp_size": 1}),
    "TP 2 PP 2 to TP 2": ({"tp_size": 2, "pp_size": 2}, {"tp_size": 2}),
    "pages of 64": ({"tp_size": 2, "page_tokens": 64}, {"tp_size": 2, "page_tokens": 64}),
    "pages of 1": ({"tp_size": 2, "page_tokens": 1}, {"tp_size": 2, "page_tokens": 1}),
}


def opened(folder: Path, prefill: dict[str, int], decode: dict[str, int]) -> DividedPair:
    with warnings.catch_warnings(action="ignore"):
        from one_process import Shape
        from page_shares_pair import DividedPair, DividedShape

        return DividedPair(folder, DividedShape(**prefill), Shape(latent=True, **decode))


@pytest.fixture(scope="module", params=SHAPES.values(), ids=SHAPES.keys())
def any_pair(
    request: pytest.FixtureRequest, sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DividedPair]:
    assert sglang_plugins is None
    with contextlib.closing(opened(tmp_path_factory.mktemp("model"), *request.param)) as pair:
        yield pair


@pytest.fixture(scope="module")
def lasting_divided(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DividedPair]:
    assert sglang_plugins is None
    with contextlib.closing(opened(tmp_path_factory.mktemp("model"), {"tp_size": 2}, {"tp_size": 2})) as pair:
        yield pair


@pytest.fixture
def pair(lasting_divided: DividedPair) -> Iterator[DividedPair]:
    yield lasting_divided
    lasting_divided.assert_nothing_held()


def pages_of_allocator(pair: DividedPair, count: int) -> list[int]:
    """As SGLang's allocator gives them to a prompt: each next page is on the next rank."""
    slots = pair.allocator().alloc_cyclic(1, count * pair.page_tokens)
    return [int(slot) // pair.page_tokens for slot in slots[:: pair.page_tokens]]


def test_should_bring_all_pages_from_whichever_rank_has_them(any_pair: DividedPair) -> None:
    shares = any_pair.prefillers[0].shape.tp_size
    own_page = 5 * shares
    any_pair.move_prompt([[own_page]], [7], 1)  # all other ranks have none of it
    any_pair.move_prompt([[own_page, own_page + shares], [own_page + 2 * shares]], [9, 8, 7], 2)
    first, *rest = pages_of_allocator(any_pair, 7)
    any_pair.move_prompt([[first], rest[:3], rest[3:]], [1, 2, 3, 30, 31, 32, 33], 3)
    any_pair.move_prompt([rest[:2], rest[2:]], [12, 13, 14, 15, 16, 17], 4, prefix_pages=3)
    any_pair.assert_nothing_held()


@pytest.mark.parametrize("seed", range(6))
def test_should_bring_pages_in_any_order(pair: DividedPair, seed: int) -> None:
    drawn = random.Random(seed)
    count = drawn.randrange(1, 20)
    sources, targets = drawn.sample(range(2, 100), count), drawn.sample(range(1, 60), count)
    cut = drawn.randrange(0, count)
    pair.move_prompt([part for part in (sources[:cut], sources[cut:]) if part], targets, seed, drawn.randrange(3))


@pytest.mark.parametrize("first", [0, 1])
def test_should_wait_for_the_rank_that_is_last(pair: DividedPair, first: int) -> None:
    from sglang.srt.disaggregation.base.conn import KVPoll

    sources, targets = [20, 21, 23], [4, 5, 6]
    whole = pair.compute(sources, 11)
    before = [side.all_pages([*range(side.shape.page_count)]) for side in pair.decoders]
    room, senders, receivers = pair.granted(targets)
    ranks = list(zip(pair.prefillers, senders, strict=True))
    pair.send(room, *ranks[first], [sources])
    pair.finish([senders[first]], [])
    assert [receiver.poll() for receiver in receivers] == [KVPoll.Transferring] * 2
    pair.send(room, *ranks[1 - first], [sources[:1], sources[1:]])
    pair.finish([senders[1 - first]], receivers)
    pair.assert_arrived(whole, targets, before)


def test_should_send_layers_while_the_pass_runs(pair: DividedPair) -> None:
    from one_process import LAYER_COUNT, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    from kv_connector import LayerCounter
    from kv_connector.sglang.layerwise import LayerwiseSteps
    from kv_connector.sglang.twins import Twins

    sources, targets, tokens = [40, 42, 43, 45, 47], [20, 21, 22, 23, 24], 5 * 16
    whole = pair.compute(sources, 12)
    before = [side.all_pages([*range(side.shape.page_count)]) for side in pair.decoders]
    room, senders, receivers = pair.granted(targets)
    names = [f"layer.{layer}" for layer in range(LAYER_COUNT)]

    def first_layer_is_there(share: int) -> bool:
        rows = [place for place, page in enumerate(sources) if page % 2 == share]
        sent = whole["0"].unflatten(0, (-1, 16))[rows]
        return all(bool((side.all_pages(targets)[0][rows] == sent).all()) for side in pair.decoders)

    for share, (side, sender) in enumerate(zip(pair.prefillers, senders, strict=True)):
        sender.pop_decode_prefix_len()
        sender.init(len(sources), 3)
        exchange = side.endpoint.exchange
        counter = LayerCounter(exchange._messenger.opened.layer_counter_address, names)
        steps = LayerwiseSteps(exchange, counter, Twins(16, 1))

        def forward(counter: Any = counter, share: int = share) -> None:
            counter.layer_complete(names[0])
            until(lambda: first_layer_is_there(share), "the first layer of the rank's pages is there")
            for name in names[1:]:
                counter.layer_complete(name)

        def plan(sender: Any = sender) -> list[Any]:
            return [sender.plan(tokens, tokens, lambda first, end: sources[first:end])]

        steps.run(plan, forward)
        assert counter.steps_out_of_order == 0
    assert [receiver.poll() for receiver in receivers] == [KVPoll.Transferring] * 2
    from one_process import pages

    for side, sender in zip(pair.prefillers, senders, strict=True):
        side.metadata.output_ids[3, 0], side.metadata.bootstrap_room[3, 0] = 9, room
        sender.send(pages(*sources), [])
    pair.finish(senders, receivers)
    pair.assert_arrived(whole, targets, before)
    pair.assert_metadata(room)


WRONG = {
    "all on the other rank's numbers": lambda sources: [page ^ 1 for page in sources],
    "one page twice and one not at all": lambda sources: [sources[0], sources[1] ^ 1, *sources[2:]],
}


@pytest.mark.parametrize("named", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("liar", [0, 1])
def test_should_not_take_a_prompt_of_which_a_page_is_missing(pair: DividedPair, named: Any, liar: int) -> None:
    """The ranks of an engine name the same pages; here one does not. Four pages each: the counts alone add up."""
    sources = [20, 21, 22, 23]
    pair.compute(sources, 13)
    room, senders, receivers = pair.granted([4, 5, 6, 7])
    for number, (side, sender) in enumerate(zip(pair.prefillers, senders, strict=True)):
        pair.send(room, side, sender, [named(sources) if number == liar else sources])
    for sentence in pair.failures(receivers):
        assert "of the 4 pages of transfer" in sentence, sentence
        assert "not at all" in sentence, sentence
    pair.finish(senders, [])
    pair.move_prompt([sources], [4, 5, 6, 7], 14)


@pytest.mark.parametrize("lacking", [0, 1])
def test_should_refuse_a_list_of_ranks_that_lacks_one(
    pair: DividedPair, lacking: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed fetch has the list looked up once more; here it lacks the rank again, and that is final."""
    for side in pair.decoders:

        def incomplete(*asked: Any, complete: Any = side.endpoint.places) -> list[Any]:
            return [place for place in complete(*asked) if place.tp_rank != lacking]

        monkeypatch.setattr(side.endpoint, "places", incomplete)
    _room, senders, receivers = pair.begin([4, 5])
    sentences = pair.failures(receivers)
    assert len(sentences) == 2
    for sentence in sentences:
        assert "name every messenger of one prefiller's engine" in sentence, sentence
        assert f"without the pages of TP rank {lacking}," in sentence, sentence
    pair.give_up([*senders, *receivers])


def test_should_end_a_request_whose_list_lacked_a_rank_once(pair: DividedPair) -> None:
    """It is complete when it is looked up again, but the rank that was in it has been declined, and fails.

    SGLang's ranks agree on that and end the request on all of them; its decoder fails with it, and waits for none.
    """
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    from kv_connector.sglang.sglang_api import KVTransferError

    _room, senders, receivers = pair.begin(None)
    for receiver in receivers:
        receiver._places, receiver.bootstrap_infos = receiver._places[:1], receiver.bootstrap_infos[:1]
        receiver.send_metadata(as_pages([4, 5]), 6)
    until(lambda: senders[0].poll() == KVPoll.Failed, "the rank that was named is declined")

    def asked_again() -> bool:
        assert [receiver.poll() for receiver in receivers] == [KVPoll.Transferring] * 2
        return all(len(receiver.bootstrap_infos) == 2 for receiver in receivers)

    until(asked_again, "the list is complete")
    for sender in senders:
        with pytest.raises(KVTransferError):
            sender.failure_exception()
    assert len(pair.failures(receivers)) == 2
    pair.give_up([*senders, *receivers])


def as_pages(indices: Sequence[int]) -> Any:
    from one_process import pages

    return pages(*indices)


@pytest.mark.parametrize("lost", [0, 1])
def test_should_fail_when_a_rank_ends_in_mid_prompt(sglang_plugins: None, tmp_path: Path, lost: int) -> None:
    assert sglang_plugins is None
    from one_process import until

    with contextlib.closing(opened(tmp_path, {"tp_size": 2}, {"tp_size": 2})) as pair:
        sources = [20, 21, 22, 23]
        pair.compute(sources, 15)
        room, senders, receivers = pair.granted([4, 5, 6, 7])
        ranks = list(zip(pair.prefillers, senders, strict=True))
        pair.send(room, *ranks[1 - lost], [sources])
        senders[lost].pop_decode_prefix_len()
        senders[lost].init(4, 3)
        senders[lost].send(as_pages(sources[:2]))
        pair.prefillers[lost].endpoint.close()
        assert len(pair.failures(receivers)) == 2
        for side in pair.decoders:
            until(lambda e=side.endpoint.exchange: not (e.drain() or e.held()), "all ended")
            until(lambda e=side.endpoint.exchange: e.leak_check().clean, "the messenger holds nothing")


def test_should_end_a_cancelled_request_and_serve_its_room_again(pair: DividedPair) -> None:
    sources, targets = [20, 21, 22], [4, 5, 6]
    pair.compute(sources, 16)
    room, senders, receivers = pair.granted(targets)
    for sender in senders:
        sender.pop_decode_prefix_len()
        sender.init(3, 3)
        sender.send(as_pages(sources[:2]))
    for receiver in receivers:
        receiver.abort()
    assert len(pair.failures(receivers)) == 2
    pair.give_up(senders)
    pair.assert_nothing_held()
    pair.move_prompt([sources], targets, 17, room=room)


def test_should_refuse_checksums_of_divided_pages(
    sglang_plugins: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sglang_plugins is None
    monkeypatch.setenv("KV_MESSENGER_PAGE_CHECKSUM", "full")
    with contextlib.closing(opened(tmp_path, {"tp_size": 2}, {"tp_size": 2})) as pair:
        room, senders, receivers = pair.begin([4, 5])
        for sentence in pair.failures(receivers):
            assert "set the decoder's page_checksum to off" in sentence, sentence
        pair.give_up(senders)
        assert room


REFUSED = {
    "on a decoder": ("decode", True, {}, "of an engine that decodes"),
    "heads": ("prefill", False, {}, "of a model whose ranks have heads of their own"),
    "context parallelism": (
        "prefill",
        True,
        dict.fromkeys(("tp_size", "moe_tp_size", "attn_cp_size"), 2),
        "with --attn-cp-size 2",
    ),
}


@pytest.mark.parametrize(("mode", "latent", "more", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_should_refuse_divided_pages_where_they_are_not_served(
    pair: DividedPair, mode: str, latent: bool, more: dict[str, Any], why: str
) -> None:
    from sglang.srt.runtime_context import get_parallel

    from kv_connector import OptionError
    from kv_connector.sglang.refusals import refuse_unsupported

    args = pair.prefillers[0].endpoint.kv_args
    with (
        get_parallel().override(enable_kv_cache_sharding=True, **more),
        pytest.raises(OptionError, match=f"^--enable-kv-cache-sharding is True, expected False {why}"),
    ):
        refuse_unsupported(args, mode, latent=latent)


def test_should_pass_sglangs_list_of_backends_and_leave_its_other_checks() -> None:
    """SGLang's own step, on arguments that only its kernels of GPUs fulfil: what it reads of the backend is a name."""
    with warnings.catch_warnings(action="ignore"):
        from sglang.srt.arg_groups import kv_shard_hook
        from sglang.srt.arg_groups.resolution_hooks import run_hook
    seen: list[str] = []

    def handle_kv_cache_sharding(arguments: Any) -> None:
        cfg = kv_shard_hook.resolving_view(arguments)
        seen.append(cfg.disaggregation_transfer_backend)
        if cfg.disaggregation_transfer_backend not in ("mooncake", "nixl"):
            raise ValueError("its list")
        if not cfg.chunked_prefill_size:
            raise ValueError("another check")

    arguments = SimpleNamespace(
        enable_kv_cache_sharding=True, disaggregation_transfer_backend="kv_messenger", chunked_prefill_size=64
    )
    run_hook(handle_kv_cache_sharding, arguments)
    assert seen == ["nixl"]
    assert kv_shard_hook.resolving_view(arguments).disaggregation_transfer_backend == "kv_messenger"
    arguments.chunked_prefill_size = 0
    with pytest.raises(ValueError, match="another check"):
        run_hook(handle_kv_cache_sharding, arguments)
    assert kv_shard_hook.resolving_view(arguments).disaggregation_transfer_backend == "kv_messenger"
    arguments.disaggregation_transfer_backend = "mori"
    with pytest.raises(ValueError, match="its list"):
        run_hook(handle_kv_cache_sharding, arguments)


@pytest.mark.parametrize("moved", ["step", "hooks", "declared", "kept"])
def test_should_leave_the_option_to_sglang_where_its_steps_have_moved(
    moved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing optional ends a start: SGLang refuses the backend by its own list then."""
    with warnings.catch_warnings(action="ignore"):
        from sglang.srt.arg_groups import overrides, resolution_hooks

        from kv_connector.sglang import page_shares, registration
    arguments = SimpleNamespace(enable_kv_cache_sharding=True, disaggregation_transfer_backend="kv_messenger")
    match moved:
        case "step":
            monkeypatch.setattr(resolution_hooks, "_OVERRIDABLE_HOOKS", frozenset())
            monkeypatch.setattr(resolution_hooks, "_HOOKS", {})
        case "hooks":
            monkeypatch.delattr(resolution_hooks, "_HOOKS")
        case "declared":
            monkeypatch.delattr(overrides, "declare_resolution")
        case _:
            monkeypatch.setattr(overrides, "declare_resolution", lambda *_args, **_fields: None)
    registration._pass_list_of_sharding()
    asked: list[Any] = []
    page_shares.pass_list(arguments, asked.append)
    assert asked == [arguments]


class Arguments(SimpleNamespace):
    """A prefiller's; what its user left out is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


OF_SGLANG = {
    "served": ({}, ""),
    "another backend": ({"disaggregation_transfer_backend": "mori"}, "only supports the mooncake and nixl"),
    "a decoder": ({"disaggregation_mode": "decode"}, "only supported on PD prefill workers"),
    "one rank": ({"tp_size": 1}, "needs tp_size > 1"),
    "pages of one token": ({"page_size": 1}, "requires a real page size"),
    "prompts in one piece": ({"chunked_prefill_size": -1}, "requires chunked prefill"),
    "divided tokens": ({"dcp_size": 2}, "mutually exclusive"),
}


@pytest.mark.parametrize(("more", "refusal"), OF_SGLANG.values(), ids=OF_SGLANG.keys())
def test_should_start_where_sglangs_own_step_has_no_other_objection(
    more: dict[str, Any], refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step itself, on a model with latent KV. What it asks of the machine is left out: kernels that need a GPU."""
    with warnings.catch_warnings(action="ignore"):
        from sglang.srt.arg_groups import kv_shard_hook
        from sglang.srt.arg_groups.resolution_hooks import run_hook
        from sglang.srt.model_executor.cuda_graph_config import Backend
    model = SimpleNamespace(is_encoder_decoder=False, attention_chunk_size=None)
    monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")
    monkeypatch.setattr(kv_shard_hook, "validate_kv_shard_attention_backend", lambda *_of: None)
    monkeypatch.setattr(kv_shard_hook, "get_device_memory_capacity", lambda _device: 1)
    monkeypatch.setattr(kv_shard_hook, "model_config_of", lambda _arguments: model)
    monkeypatch.setattr(kv_shard_hook, "use_mla_backend", lambda _arguments: True)
    monkeypatch.setattr(kv_shard_hook, "attn_dp_enabled_of", lambda _view: False)
    given = {
        "enable_kv_cache_sharding": True,
        "disaggregation_mode": "prefill",
        "disaggregation_transfer_backend": "kv_messenger",
        "tp_size": 2,
        "pp_size": 1,
        "attn_cp_size": 1,
        "dcp_size": 1,
        "page_size": 64,
        "chunked_prefill_size": 512,
        "cuda_graph_config": SimpleNamespace(prefill=SimpleNamespace(backend=Backend.DISABLED)),
    }
    arguments = Arguments(**given | more)
    if refusal:
        with pytest.raises(ValueError, match=refusal):
            run_hook(kv_shard_hook.handle_kv_cache_sharding, arguments)
        return
    run_hook(kv_shard_hook.handle_kv_cache_sharding, arguments)
    assert kv_shard_hook.resolving_view(arguments).disaggregation_transfer_backend == "kv_messenger"
    with pytest.raises(ValueError, match="only supports the mooncake and nixl"):
        kv_shard_hook.handle_kv_cache_sharding(arguments)  # its list, where no plugin passes it
