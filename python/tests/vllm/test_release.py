"""What the connector takes from each vLLM release, and what that release may call."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from release import Release, Status
from simulated_engine import caches, config

from kv_connector.vllm import transfer_params

HANDLED = "handled"
CLASSIFIED = {
    "__init__": HANDLED,
    "bind_connector_metadata": HANDLED,
    "bind_gpu_block_pool": HANDLED,
    "bind_kv_cache_manager": "inherited: it passes the block pool on",
    "build_connector_meta": HANDLED,
    "build_connector_worker_meta": HANDLED,
    "build_kv_connector_stats": HANDLED,
    "build_prom_metrics": HANDLED,
    "clear_connector_metadata": "inherited: the step was closed by wait_for_save",
    "finish_forward": HANDLED,
    "get_block_ids_with_load_errors": HANDLED,
    "get_external_cache_hit_sources": "inherited: all external tokens come from a peer, by _cache_hit_source",
    "get_finished": HANDLED,
    "get_finished_count": HANDLED,
    "get_handshake_metadata": HANDLED,
    "get_kv_connector_kv_cache_events": "inherited: transferred blocks are cached, and announced, by vLLM itself",
    "get_kv_connector_stats": HANDLED,
    "get_loaded_kv_cache_group_ids": HANDLED,
    "get_mem_pool_context": HANDLED,
    "get_num_new_matched_tokens": HANDLED,
    "get_required_kvcache_layout": HANDLED,
    "get_transfer_results": HANDLED,
    "handle_preemptions": HANDLED,
    "has_connector_metadata": HANDLED,
    "has_pending_block_frees": "inherited: a held prefill may wait for its grant longer than a preemption costs",
    "has_pending_push_work": HANDLED,
    "on_new_request": HANDLED,
    "register_finished_partial_tail": "inherited: caches with partial tails are refused at the start",
    "register_kv_caches": HANDLED,
    "request_finished": HANDLED,
    "request_finished_all_groups": HANDLED,
    "requires_kv_delivery": "inherited: true on a prefiller, so that a preempted prompt is computed and sent again",
    "requires_piecewise_for_cudagraph": HANDLED,
    "reset_cache": HANDLED,
    "reset_capture_state": "inherited: KV on an accelerator is refused at the start",
    "restore_kv_caches": HANDLED,
    "role": "inherited: a property",
    "save_kv_layer": HANDLED,
    "set_host_xfer_buffer_ops": "inherited: KV is in host memory already",
    "set_xfer_handshake_metadata": HANDLED,
    "set_xfer_handshake_metadata_pp_aware": HANDLED,
    "shutdown": HANDLED,
    "start_load_kv": HANDLED,
    "supports_divergent_local_hybrid_hits": "inherited: a state is served without prefix caching only",
    "supports_sleep_mode": HANDLED,
    "take_events": "inherited: transferred blocks are cached, and announced, by vLLM itself",
    "unregister_kv_caches": HANDLED,
    "update_connector_output": HANDLED,
    "update_state_after_alloc": HANDLED,
    "wait_for_layer_load": HANDLED,
    "wait_for_save": HANDLED,
    "_get_connector_metadata": "inherited: not used",
}
"""Every method that a connector can have → what is done about it."""


def methods_of(release: Release) -> set[str]:
    named = {**vars(release.base.KVConnectorBase_V1), **vars(release.base.SupportsHMA)}
    return {
        name
        for name, value in named.items()
        if (callable(value) or isinstance(value, property | classmethod | staticmethod))
        and (name == "__init__" or not name.startswith("__"))
    }


def test_should_have_a_decision_on_every_method_of_the_base_class(vllm_release: Release) -> None:
    unclassified = methods_of(vllm_release) - set(CLASSIFIED)
    assert not unclassified, f"vLLM {vllm_release.name} calls what is not classified: {sorted(unclassified)}"


def test_should_handle_and_inherit_what_is_listed_here(vllm_release: Release) -> None:
    own = set(vars(vllm_release.connector.KvMessengerConnector))
    existing = methods_of(vllm_release)
    assert {name for name in existing & own if CLASSIFIED[name] != HANDLED} == set()
    assert {name for name in existing - own if CLASSIFIED[name] == HANDLED} == set()


def test_should_know_no_method_that_no_release_has() -> None:
    import release as loader
    import vllm_sources

    known: set[str] = set()
    for name in vllm_sources.RELEASES:
        try:
            with loader.loaded(name) as found:
                known |= methods_of(found)
        except vllm_sources.SourcesUnavailableError as missing:
            pytest.skip(str(missing))
    assert set(CLASSIFIED) - known == set()


def test_should_take_the_same_arguments_as_the_base_class(vllm_release: Release) -> None:
    for name in methods_of(vllm_release):
        theirs = inspect.getattr_static(vllm_release.base.KVConnectorBase_V1, name, None)
        ours = vars(vllm_release.connector.KvMessengerConnector).get(name)
        if theirs is None or ours is None or isinstance(theirs, property):
            continue
        expected, found = (
            list(inspect.signature(getattr(method, "__func__", method)).parameters) for method in (theirs, ours)
        )
        assert found == expected, name


def test_should_be_made_by_the_factory_under_its_name(vllm_release: Release) -> None:
    factory = vllm_release.factory.KVConnectorFactory
    vllm_release.package.register()
    vllm_release.package.register()
    wanted = SimpleNamespace(kv_connector="KvMessengerConnector", kv_connector_module_path=None)
    assert factory.get_connector_class(wanted) is vllm_release.connector.KvMessengerConnector
    wanted.kv_connector_module_path = "kv_connector.vllm.connector"
    assert factory.get_connector_class(wanted) is vllm_release.connector.KvMessengerConnector
    assert vllm_release.base.supports_hma(vllm_release.connector.KvMessengerConnector)


def test_should_use_names_of_states_that_the_release_has(vllm_release: Release) -> None:
    text = (vllm_release.folder / "vllm" / "v1" / "request.py").read_text()
    theirs = set(re.findall(r"^    ([A-Z_]+) = enum\.auto\(\)", text, re.MULTILINE))
    assert {status.name for status in Status} <= theirs
    finished = {name for name in theirs if name.startswith("FINISHED_")}
    known = {*("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_REPETITION", "FINISHED_ABORTED")}
    assert finished - known == {"FINISHED_IGNORED", "FINISHED_ERROR"}


@pytest.mark.parametrize(
    ("role", "more", "sentence"),
    [
        ("kv_producer", {"extra": {"listen_prot": 1}}, "did you mean 'listen_port'"),
        ("kv_producer", {"extra": {"listen_port": "x"}}, "option 'listen_port' is 'x', expected an integer"),
        ("kv_producer", {"decode_context_parallel_size": 2}, "decode_context_parallel_size is 2, expected 1"),
        ("kv_nobody", {}, "kv_role is 'kv_nobody', expected one of kv_producer, kv_consumer, kv_both"),
    ],
)
def test_should_refuse_to_start_with_one_sentence(
    vllm_release: Release, role: str, more: dict[str, Any], sentence: str
) -> None:
    for half in vllm_release.base.KVConnectorRole:
        with pytest.raises(Exception, match=re.escape(sentence)) as raised:
            vllm_release.connector.KvMessengerConnector(config(role, **more), half, caches())
        assert type(raised.value).__name__ == "OptionError"


def test_should_refuse_a_wrong_option_when_vllm_makes_its_configuration(vllm_release: Release) -> None:
    cls = vllm_release.connector.KvMessengerConnector
    with pytest.raises(Exception, match="did you mean 'listen_port'") as raised:
        cls.requires_piecewise_for_cudagraph({"listen_prot": 1})
    assert type(raised.value).__name__ == "OptionError"
    with pytest.raises(Exception, match=r"'/nowhere', which is no Java runtime .*set java_home to a Java runtime"):
        cls.requires_piecewise_for_cudagraph({"java_home": "/nowhere"})
    assert not cls.requires_piecewise_for_cudagraph({"listen_port": 1})
    assert not cls.requires_piecewise_for_cudagraph({})


def test_should_refuse_a_gpu_when_vllm_makes_its_configuration(
    vllm_release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["vllm.platforms"].current_platform, "device_type", "cuda")
    with pytest.raises(Exception, match="computes on device 'cuda', expected 'cpu'") as raised:
        vllm_release.connector.KvMessengerConnector.requires_piecewise_for_cudagraph({})
    assert type(raised.value).__name__ == "OptionError"


@pytest.mark.parametrize(
    ("device", "extra", "sentence"),
    [
        ("xpu", {}, "computes on device 'xpu', expected 'cpu'"),
        ("cpu", {"listen_prot": 1}, "did you mean 'listen_port'"),
        ("cpu", {"grant_wait_seconds": 0}, "option 'grant_wait_seconds' is 0, expected a value"),
        ("cpu", {"java_home": "/nowhere"}, "option 'java_home' is '/nowhere', which is no Java runtime"),
    ],
)
def test_should_refuse_a_wrong_set_up_before_memory_for_kv_is_measured(
    vllm_release: Release, device: str, extra: dict[str, Any], sentence: str
) -> None:
    """On CPU and without graphs vLLM asks nothing of a connector before the model is loaded."""
    wrong = config("kv_producer", extra=extra)
    wrong.device_config.device_type = device
    with pytest.raises(Exception, match=sentence) as raised:
        vllm_release.connector.KvMessengerConnector.get_required_kvcache_layout(wrong)
    assert type(raised.value).__name__ == ("PreflightError" if "java_home" in extra else "OptionError")


def test_should_be_asked_for_its_layout_before_memory_for_kv_is_measured(vllm_release: Release) -> None:
    """What is refused there is refused that early only as long as the release keeps this order."""
    core = (vllm_release.folder / "vllm" / "v1" / "engine" / "core.py").read_text()
    resolver = (vllm_release.folder / "vllm" / "v1" / "attention" / "backends" / "utils.py").read_text()
    start = core.split("def _initialize_kv_caches")[1]
    asked, measured = (start.index(call) for call in ("resolve_kv_cache_layout(", "determine_available_memory()"))
    assert asked < measured
    assert "get_kv_connector_cache_layout(vllm_config)" in resolver.split("def resolve_kv_cache_layout")[1]


class CrossAttentionSpec:
    block_size = 16


def test_should_refuse_caches_that_it_cannot_move(vllm_release: Release) -> None:
    cls, worker = vllm_release.connector.KvMessengerConnector, vllm_release.base.KVConnectorRole.WORKER
    hybrid = caches()
    hybrid.kv_cache_groups += caches(("local.0", "local.1"), CrossAttentionSpec()).kv_cache_groups
    with pytest.raises(
        Exception,
        match=r"group 1 of 2 \(layers local.0, local.1\) is of kind CrossAttentionSpec, expected one of",
    ):
        cls(config("kv_producer"), worker, hybrid)


def test_should_write_its_figures_to_vllm_s_metrics(vllm_release: Release) -> None:
    prometheus_client = pytest.importorskip("prometheus_client")
    registry = prometheus_client.CollectorRegistry()

    def on_registry(kind: Any) -> Any:
        return lambda **named: kind(registry=registry, **named)

    kinds = (prometheus_client.Counter, prometheus_client.Gauge, prometheus_client.Histogram)
    cls = vllm_release.connector.KvMessengerConnector
    metrics = cls.build_prom_metrics(
        config("kv_producer"), {kind: on_registry(kind) for kind in kinds}, ["engine"], {0: ["0"]}
    )

    def report(messenger: str, sent_bytes: int, quarantined: int) -> Any:
        gauges = {messenger: {"kv_messenger_pages_quarantined": quarantined}}
        return cls.build_kv_connector_stats({"counters": {"kv_messenger_sent_bytes": sent_bytes}, "gauges": gauges})

    def observe(stats: Any) -> float | None:
        metrics.observe(json.loads(json.dumps(stats.to_dict())), 0)
        return registry.get_sample_value("vllm:kv_messenger_pages_quarantined", {"engine": "0"})

    first = report("a", 5_000_000, 7)
    first.aggregate(report("b", 1_000_000, 2))
    first.aggregate(report("b", 0, 0))
    assert not first.is_empty()
    assert first.reduce() == {"sent_MB": 6.0}
    assert observe(first) == 7
    assert registry.get_sample_value("vllm:kv_messenger_sent_bytes_total", {"engine": "0"}) == 6_000_000
    assert observe(report("b", 0, 3)) == 10, "a messenger that says nothing has what it had"
    assert observe(report("a", 0, 0)) == 3
    assert cls.build_kv_connector_stats().is_empty()


SECTIONS = {
    "counters": {"kv_messenger_sent_bytes": 5_000_000},
    "reasons": {"kv_messenger_fetches_failed": {"damaged": 1}},
    "histograms": {"kv_messenger_fetch_seconds": {"buckets": [1, 0], "sum": 0.1}},
    "gauges": {"a": {"kv_messenger_fetches_open": 1}},
}


@pytest.mark.parametrize("count", range(1, len(SECTIONS) + 1))
def test_should_log_a_report_that_leaves_sections_out(vllm_release: Release, count: int) -> None:
    """vLLM logs on a task of its own, which would end with the first report that cannot be logged."""
    cls = vllm_release.connector.KvMessengerConnector
    for sections in itertools.combinations(SECTIONS, count):
        report = cls.build_kv_connector_stats({section: SECTIONS[section] for section in sections})
        assert not report.is_empty()
        assert report.reduce() == ({"sent_MB": 5.0} if "counters" in sections else {})
        for others in itertools.combinations(SECTIONS, count):
            report.aggregate(cls.build_kv_connector_stats(json.loads(json.dumps({each: {} for each in others}))))
        assert report.reduce() == ({"sent_MB": 5.0} if "counters" in sections else {})


@pytest.mark.parametrize(
    ("extra", "expected"), [({"listen_port": 4000, "metrics_port": 5000}, (4003, 5003)), ({}, (14582, 0))]
)
def test_should_count_fixed_ports_up_with_the_messenger(
    vllm_release: Release, extra: dict[str, int], expected: tuple[int, int]
) -> None:
    facts = vllm_release.connector.read_facts(config("kv_producer", extra=extra), caches())
    options = vllm_release.engine_facts.options_of_messenger(facts.options, 3)
    assert (options.listen_port, options.metrics_port) == expected


@pytest.mark.parametrize(
    ("device", "latent", "layout"), [("cuda", False, "LBHNC"), ("cuda", True, None), ("cpu", False, None)]
)
def test_should_ask_for_heads_before_tokens_on_a_gpu(
    vllm_release: Release, device: str, latent: bool, layout: str | None
) -> None:
    """vLLM's MultiConnector ends the start where two of its connectors name layouts differently, even the same one."""
    asked = config("kv_producer", extra={"gpu": "unproven"})
    asked.device_config.device_type = device
    asked.model_config.use_mla = latent
    assert vllm_release.connector.KvMessengerConnector.get_required_kvcache_layout(asked) == layout


def test_should_name_the_layout_as_vllm_does(vllm_release: Release) -> None:
    layouts = (vllm_release.folder / "vllm" / "v1" / "kv_cache_layout.py").read_text("utf-8")
    assert re.search(rf"^    {vllm_release.connector.HEADS_BEFORE_TOKENS} = ", layouts, re.MULTILINE)
    backends = (vllm_release.folder / "vllm" / "v1" / "attention" / "backends" / "utils.py").read_text("utf-8")
    assert f"KVCacheLayout.{vllm_release.connector.HEADS_BEFORE_TOKENS}," in backends


def test_should_not_let_two_messengers_get_one_prompt_from_two_prefillers() -> None:
    params = {"do_remote_prefill": True, "prefiller": ["one:4000", "two:4000"]}
    one, two = (transfer_params.Side("decoder", 2, 1, count) for count in (1, 2))
    assert isinstance(transfer_params.read(params, "r-00000000", one), transfer_params.Receive)
    refused = transfer_params.read(params, "r-00000000", two)
    assert isinstance(refused, transfer_params.Refused)
    assert "names 2 prefillers and this decoder has 2 messengers" in refused.reason


def test_should_bring_the_news_of_all_messengers(vllm_release: Release) -> None:
    news = vllm_release.metadata.WorkerNews
    both = news(["a"], ["b"], ["c"]).aggregate(news(["d"], [], ["c"]))
    assert both == news(["a", "d"], ["b"], ["c", "c"])


def test_should_know_how_the_release_makes_identities_up(vllm_release: Release) -> None:
    renderer = (vllm_release.folder / "vllm" / "renderers" / "base.py").read_text()
    assert 'mm_req_id = f"renderer{self.api_process_rank}-mm-{self._mm_req_counter.inc(1)}"' in renderer
