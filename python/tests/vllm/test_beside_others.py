"""Inside vLLM's own MultiConnector, beside a connector that keeps KV somewhere else, in both orders."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from release import Release
from simulated_engine import LAYERS, SimulatedEngine, config, pickled, remote_decode, remote_prefill

REQUEST = "chatcmpl-0123456789abcdef-89abcdef"
PROMPT_TOKENS = 300
BLOCK_TOKENS = 128
STORED_TOKENS = 2 * BLOCK_TOKENS
STORE_MODULE = "a_store_of_kv"
OURS = {"kv_connector": "KvMessengerConnector", "kv_connector_module_path": "kv_connector.vllm.connector"}
STORE = {"kv_connector": "Store", "kv_connector_module_path": STORE_MODULE}


def store_class(release: Release) -> type:
    """A connector that has KV of some prompts, and takes one step to load it and three to save it."""
    base = release.base

    class Store(base.KVConnectorBase_V1, base.SupportsHMA):  # type: ignore[name-defined, misc]
        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
            super().__init__(vllm_config, role, kv_cache_config)
            self.has_tokens = 0
            """Of every prompt."""
            self.fails = False  # whether what it loads does not come
            self.saves = False
            self.loads: list[str] = []
            self.load_steps = 0
            """After how many steps what was asked for is loaded; the worker's."""
            self.loading: list[set[str]] = []
            self.ended: list[str] = []
            self.saved: list[set[str]] = [set() for _ in range(3)]
            self.hooks = 0
            self.offered: set[str] = set()
            """Requests whose blocks it might save: they have been scheduled."""

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:  # noqa: ARG002
            missing = self.has_tokens - num_computed_tokens
            return (missing, True) if missing > 0 else (0, False)

        def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:  # noqa: ARG002
            return (0,)

        def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:  # noqa: ARG002
            if num_external_tokens:
                self.loads.append(request.request_id)

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            self.offered.update(new.req_id for new in scheduler_output.scheduled_new_reqs)
            meta = SimpleNamespace(loads=self.loads, ended=self.ended)
            self.loads, self.ended = [], []
            return meta

        def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:  # noqa: ARG002
            if self.saves:
                self.ended.append(request.request_id)
            return self.saves, None

        def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
        def wait_for_layer_load(self, layer_name: str) -> None: ...
        def wait_for_save(self) -> None: ...

        def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:  # noqa: ARG002
            self.hooks += 1

        def get_transfer_results(self, finished_req_ids: set[str]) -> Any:  # noqa: ARG002
            meta = self._get_connector_metadata()
            self.saved.append(set(meta.ended))
            self.loading.append(set(meta.loads))
            loaded = self.loading.pop(0) if len(self.loading) > self.load_steps else set()
            sent, failed = self.saved.pop(0), loaded if self.fails else set()
            results = base.KVConnectorTransferResults
            return results(finished_sending=sent, finished_recving=loaded, failed_recving=failed)

    return Store


def range_loading(multi: type) -> type:
    """MultiConnector as vLLM's pull requests 54240, 54421 and 55374 would have it: what one connector has of a prompt
    is loaded by it, and what a later one has beyond that by the later one; the request goes on when both have ended.
    """

    class RangeLoading(multi):  # type: ignore[misc]
        contributors: dict[str, int] = {}  # noqa: RUF012 - of the scheduler's object and the worker's
        """How many have not ended yet, by request."""

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
            end = num_computed_tokens
            self.shares: dict[int, int] = {}
            for index, connector in enumerate(self._connectors):
                tokens, _ = connector.get_num_new_matched_tokens(request, num_computed_tokens)
                if num_computed_tokens + tokens > end:
                    self.shares[index] = num_computed_tokens + tokens - end
                    end = num_computed_tokens + tokens
                    self._requests_to_connector[request.request_id] = index
            return end - num_computed_tokens, bool(self.shares)

        def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
            shares = self.shares if num_external_tokens else {}
            for index, connector in enumerate(self._connectors):
                connector.update_state_after_alloc(request, blocks, shares.get(index, 0))
            if shares:
                self.contributors[request.request_id] = len(shares)

        def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
            (results, *others) = [each.get_transfer_results(finished_req_ids) for each in self._connectors]
            received = [request for each in (results, *others) for request in each.finished_recving]
            for request in received:
                self.contributors[request] -= 1
            for each in others:
                results.finished_sending |= each.finished_sending
                results.failed_recving |= each.failed_recving
            results.finished_recving = {request for request in received if not self.contributors[request]}
            return results

    return RangeLoading


class SharedEngine(SimulatedEngine):
    """An engine whose connector is vLLM's MultiConnector around ours and the store."""

    store_first = False
    multi: type[Any]

    def _connector(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> tuple[Any, Any]:
        given = vllm_config.kv_transfer_config
        ours = OURS | {"kv_role": given.kv_role, "kv_connector_extra_config": given.kv_connector_extra_config}
        outer = config(given.kv_role)
        outer.model_config = vllm_config.model_config
        children = [STORE, ours] if self.store_first else [ours, STORE]
        outer.kv_transfer_config.kv_connector_extra_config = {"connectors": children}
        outer.scheduler_config = SimpleNamespace(disable_hybrid_kv_cache_manager=False)
        made = self.multi(outer, role, kv_cache_config)
        own = made.sub_connectors[self.store_first]
        setattr(self, f"{role.name.lower()}_store", made.sub_connectors[not self.store_first])
        return made, own

    @property
    def stores(self) -> tuple[Any, Any]:
        """The scheduler's and the worker's."""
        return self.__dict__["scheduler_store"], self.__dict__["worker_store"]

    def save_all(self) -> None:
        for store in self.stores:
            store.saves = True


class _TransferConfig(SimpleNamespace):
    """As much of vLLM's KVTransferConfig as MultiConnector and the connectors read."""

    def __init__(self, **given: Any) -> None:
        plain = {"kv_role": "kv_both", "kv_port": 14579, "kv_connector_extra_config": {}}
        super().__init__(**(plain | given))
        self.is_kv_producer = self.kv_role != "kv_consumer"


@pytest.fixture(params=["messenger first", "store first"])
def shared(vllm_release: Release, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    module = ModuleType(STORE_MODULE)
    monkeypatch.setattr(module, "Store", store_class(vllm_release), raising=False)
    monkeypatch.setitem(sys.modules, STORE_MODULE, module)
    monkeypatch.setattr(vllm_release.multi, "KVTransferConfig", _TransferConfig)

    def made(kv_role: str, *, ranges: bool = False, **more: Any) -> SharedEngine:
        multi = vllm_release.multi.MultiConnector
        ordered = {
            "store_first": request.param == "store first",
            "multi": range_loading(multi) if ranges else multi,
        }
        return type("Ordered", (SharedEngine,), ordered)(vllm_release, kv_role, **more)

    return made


def test_should_keep_blocks_until_it_has_sent_and_the_other_has_saved(shared: Any) -> None:
    prefiller = shared("kv_producer")
    prefiller.save_all()
    prefiller.add(REQUEST, PROMPT_TOKENS, remote_decode())
    prefiller.steps(2)
    assert prefiller.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert prefiller.answers[REQUEST]["remote_port"] == 14579
    prefiller.steps(4)
    assert REQUEST in prefiller.requests, "it was saved, and is not sent"
    prefiller.messenger.release(REQUEST)
    prefiller.steps(2)
    assert prefiller.at_rest()


def test_should_keep_blocks_until_the_other_has_saved_what_is_sent_already(shared: Any) -> None:
    prefiller = shared("kv_producer")
    prefiller.save_all()
    prefiller.add(REQUEST, PROMPT_TOKENS, remote_decode())
    prefiller.steps(3)
    prefiller.messenger.release(REQUEST)
    prefiller.step()
    assert prefiller.messenger.leak_check().clean
    assert REQUEST in prefiller.requests, "it was sent, and is not saved"
    prefiller.steps(4)
    assert prefiller.at_rest()


def test_should_count_the_layers_of_its_own_steps_only(shared: Any) -> None:
    """MultiConnector says that there is metadata in every step, so that all layers' hooks are called."""
    prefiller = shared("kv_producer")
    prefiller.add("plain", PROMPT_TOKENS, None, max_tokens=3)
    prefiller.steps(4)
    assert prefiller.stores[1].hooks == 4 * len(LAYERS)
    assert prefiller.messenger.count == 41
    prefiller.add(REQUEST, PROMPT_TOKENS, remote_decode())
    prefiller.steps(3)
    assert prefiller.messenger.count == 41 + 2 * len(LAYERS)
    prefiller.messenger.release(REQUEST)
    prefiller.steps(2)
    assert prefiller.at_rest()


def test_should_fetch_where_the_other_has_nothing(shared: Any) -> None:
    decoder = shared("kv_consumer")
    decoder.add(REQUEST, PROMPT_TOKENS, remote_prefill(), max_tokens=2)
    decoder.step()
    assert [fetch["request"] for fetch in decoder.messenger.of_kind("fetch")] == [REQUEST]
    decoder.steps(3)
    assert decoder.stores[0].offered == set(), "it might save blocks in which nothing has arrived"
    decoder.messenger.arrive(REQUEST)
    decoder.steps(4)
    assert decoder.stores[0].offered == {REQUEST}
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.at_rest()


def test_should_leave_what_both_have_to_the_first(shared: Any) -> None:
    decoder = shared("kv_consumer")
    for store in decoder.stores:
        store.has_tokens = PROMPT_TOKENS - 1
    decoder.add(REQUEST, PROMPT_TOKENS, remote_prefill(), max_tokens=2)
    decoder.steps(2)
    if decoder.store_first:
        assert decoder.messenger.of_kind("fetch") == []
        assert len(decoder.messenger.of_kind("decline")) == 1
    else:
        decoder.messenger.arrive(REQUEST)
    decoder.steps(4)
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.at_rest()


@pytest.mark.parametrize("ends_first", ["store", "messenger"])
def test_should_fetch_what_follows_on_the_part_that_the_other_loads(shared: Any, ends_first: str) -> None:
    """Where one request may be loaded by several. Asked first, the messenger has all of a prompt, and is sent all."""
    decoder = shared("kv_consumer", ranges=True)
    for store in decoder.stores:
        store.has_tokens = STORED_TOKENS
        store.load_steps = 0 if ends_first == "store" else 3
    decoder.add(REQUEST, PROMPT_TOKENS, remote_prefill(), max_tokens=2)
    decoder.step()
    first_token = STORED_TOKENS if decoder.store_first else 0
    (fetch,) = decoder.messenger.of_kind("fetch")
    assert (fetch["firstToken"], fetch["promptTokens"]) == (first_token, PROMPT_TOKENS)
    blocks = decoder.requests[REQUEST].blocks
    assert [group["pages"] for group in fetch["groups"]] == [blocks[first_token // BLOCK_TOKENS :]]
    assert decoder.messenger.of_kind("decline") == []
    decoder.steps(1 if ends_first == "store" else 0)
    decoder.messenger.arrive(REQUEST)
    decoder.step()
    if ends_first == "messenger" and decoder.store_first:
        assert REQUEST not in decoder.ended, "the store has not loaded its part yet"
    decoder.steps(6)
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.at_rest()


@pytest.mark.parametrize("goes", ["aborted", "failed"])
def test_should_free_the_blocks_of_a_fetch_that_came_to_nothing(shared: Any, goes: str) -> None:
    decoder = shared("kv_consumer")
    decoder.add(REQUEST, PROMPT_TOKENS, remote_prefill())
    decoder.step()
    if goes == "aborted":
        decoder.abort(REQUEST)
        decoder.step()
        assert len(decoder.free_blocks) < decoder.block_count
    decoder.messenger.fail(REQUEST)
    decoder.steps(3)
    assert decoder.ended[REQUEST].name == ("FINISHED_ABORTED" if goes == "aborted" else "FINISHED_ERROR")
    assert decoder.at_rest()


def test_should_let_a_preempted_prompt_be_overwritten_after_its_fence(shared: Any) -> None:
    prefiller = shared("kv_producer")
    prefiller.add(REQUEST, PROMPT_TOKENS, remote_decode())
    prefiller.step()
    prefiller.preempt(REQUEST)
    prefiller.steps(3)
    assert [chunk["endToken"] for chunk in prefiller.messenger.chunks_of(REQUEST)][-1] == PROMPT_TOKENS
    prefiller.messenger.release(REQUEST)
    prefiller.steps(2)
    assert prefiller.at_rest()


def test_should_have_its_figures_reported_under_its_name(shared: Any) -> None:
    decoder = shared("kv_consumer")
    decoder.messenger.totals["kv_messenger_fetches_arrived"] = 2
    figures = decoder.worker.get_kv_connector_stats()
    decoder.release.package.register()  # as vLLM does in the process that writes the log and shows the metrics
    plain = {name: pickled(child.data) for name, child in figures.data.items()}
    rebuilt = decoder.release.multi.MultiConnector.build_kv_connector_stats(data=plain)
    assert rebuilt.aggregate(figures).reduce() == {"KvMessengerConnector": {"fetches_arrived": 4}}


@pytest.mark.parametrize("kv_role", ["kv_producer", "kv_both", "kv_consumer"])
def test_should_not_take_another_connector_s_address_for_its_own(shared: Any, kv_role: str) -> None:
    """MultiConnector gives all of its connectors the handshake of the first one that has any."""
    engine = shared(kv_role)
    others = {(0, 0): SimpleNamespace(agent="another's")}
    if kv_role == "kv_consumer":
        engine.scheduler.set_xfer_handshake_metadata_pp_aware(others)
        return
    with pytest.raises(Exception, match=r"was told SimpleNamespace in place .* name KvMessengerConnector first"):
        engine.scheduler.set_xfer_handshake_metadata_pp_aware(others)


@pytest.mark.parametrize("goes", ["aborted", "failed"])
@pytest.mark.parametrize("load_steps", [0, 1, 3])
def test_should_report_a_prompt_once_that_ends_while_the_other_loads_it(
    shared: Any, load_steps: int, goes: str
) -> None:
    """vLLM ends at a second report of one request, and gives its blocks out at the first."""
    for ended_after, released_after in itertools.product((1, 2, 3), (0, 1, 2, 5)):
        prefiller = shared("kv_producer")
        for store in prefiller.stores:
            store.has_tokens, store.load_steps, store.fails = STORED_TOKENS, load_steps, goes == "failed"
        prefiller.add(REQUEST, PROMPT_TOKENS, remote_decode(), max_tokens=4)
        prefiller.steps(ended_after)
        if goes == "aborted":
            prefiller.abort(REQUEST)
        prefiller.steps(released_after)
        prefiller.add("another", prefiller.chunk_tokens, None, max_tokens=3)
        for _ in range(5):
            for request in prefiller.messenger.owes():
                prefiller.messenger.release(request)
            prefiller.steps(2)
        assert prefiller.ended[REQUEST].name == ("FINISHED_ABORTED" if goes == "aborted" else "FINISHED_ERROR")
        (ended,) = prefiller.messenger.of_kind("prefillEnded")
        assert ended["outcome"] == goes, "its decoder hears how it ended"
        assert prefiller.at_rest(), (ended_after, released_after)
