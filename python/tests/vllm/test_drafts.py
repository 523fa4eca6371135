"""Speculative decoding: a drafter runs behind the model's forward pass, before vLLM ends the step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from release import Release
from simulated_engine import HEADS, LAYERS, SimulatedEngine, caches, config, remote_decode, remote_prefill

from kv_connector import OptionError
from kv_connector.vllm.drafts import named_with, refuse_unserved_layers, refuse_unserved_method
from kv_connector.vllm.kv_groups import KvGroup

DRAFTED = tuple(f"draft_model.model.layers.{index}.self_attn.attn" for index in range(2))
PASSES = 3
REQUEST = "cmpl-a-0-11111111"


def speculating(method: str = "draft_model", *, model: str = "/models/draft", modules: int = 1) -> Any:
    draft = SimpleNamespace(
        model=model,
        hf_text_config=SimpleNamespace(hidden_size=64),
        hf_config=SimpleNamespace(n_predict=modules),
        get_total_num_kv_heads=lambda: HEADS,
    )
    return SimpleNamespace(method=method, num_speculative_tokens=PASSES, draft_model_config=draft)


class DraftingEngine(SimulatedEngine):
    """vLLM reports a step before its drafter runs, and ends it behind that."""

    def __init__(self, release: Release, kv_role: str) -> None:
        super().__init__(release, kv_role, layers=LAYERS + DRAFTED, speculative=speculating())
        self.hooked_layers = list(LAYERS)
        self.counted_by_drafts = 0
        self.sent_before_drafts: list[str] = []

    def _end_forward(self) -> None:
        self.worker.start_load_kv(None)

    def _results(self, output: Any) -> Any:
        results = super()._results(output)
        if output.total_num_scheduled_tokens:
            count = self.messenger.count
            self.sent_before_drafts.append(self.messenger.commands[-1]["do"])
            for layer in DRAFTED * PASSES:
                self._hook(layer)
            self.counted_by_drafts += self.messenger.count - count
        self.worker.wait_for_save()
        return results


def test_should_release_a_draft_s_layers_with_the_end_of_the_step(vllm_release: Release) -> None:
    prefiller = DraftingEngine(vllm_release, "kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.steps(4)
    assert [layer["name"] for layer in prefiller.messenger.geometry["ranks"][0]["layers"]] == [*LAYERS, *DRAFTED]
    assert [command["do"] for command in prefiller.messenger.commands] == [
        *("announce", *["step", "stepEnded"] * 3, "prefillEnded")
    ]
    assert prefiller.messenger.counter_starts == [41, 45, 49]
    assert prefiller.messenger.count == 41 + 3 * len(LAYERS)
    assert prefiller.counted_by_drafts == 0
    assert prefiller.sent_before_drafts == ["step"] * 3, "no pages may leave that a drafter has not written"
    prefiller.messenger.release(REQUEST)
    prefiller.steps(2)
    assert prefiller.at_rest()


def test_should_fetch_into_the_same_blocks_for_model_and_draft(vllm_release: Release) -> None:
    decoder = DraftingEngine(vllm_release, "kv_consumer")
    decoder.add(REQUEST, 300, remote_prefill(), max_tokens=4)
    decoder.step()
    (fetch,) = decoder.messenger.of_kind("fetch")
    (group,) = decoder.messenger.geometry["groups"]
    assert (group["kvHeadCount"], [len(each["pages"]) for each in fetch["groups"]]) == (HEADS, [3])
    decoder.messenger.arrive(REQUEST)
    decoder.steps(8)
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.at_rest()


def test_should_name_a_draft_with_kv_beside_the_model(vllm_release: Release) -> None:
    model = DraftingEngine(vllm_release, "kv_producer").messenger.geometry["model"]
    plain = SimulatedEngine(vllm_release, "kv_producer").messenger.geometry["model"]
    assert model.startswith(f"{plain} with --speculative-config draft@")
    assert model.endswith("/draft_model")
    without_kv = SimulatedEngine(vllm_release, "kv_producer", speculative=speculating("ngram"))
    assert without_kv.messenger.geometry["model"] == plain


def test_should_distinguish_drafts_by_name_shape_and_method() -> None:
    named = [
        named_with("tiny", each, model_id="")
        for each in (speculating(), speculating("eagle"), speculating(model="/models/other"))
    ]
    assert len(set(named)) == 3
    alike = {named_with("tiny", each, model_id="one") for each in (speculating(), speculating(model="/other/place"))}
    assert len(alike) == 1


@pytest.mark.parametrize("method", ["medusa", "dflash"])
def test_should_refuse_methods_that_were_not_shown(vllm_release: Release, method: str) -> None:
    drafting = config("kv_producer")
    drafting.speculative_config = speculating(method)
    role = vllm_release.base.KVConnectorRole.WORKER
    with pytest.raises(Exception, match=f"--speculative-config is '{method}', expected one of ngram, ngram_gpu"):
        vllm_release.connector.KvMessengerConnector(drafting, role, caches())


def test_should_take_methods_without_kv() -> None:
    for method in (None, "ngram", "ngram_gpu", "suffix"):
        refuse_unserved_method(SimpleNamespace(method=method))
    refuse_unserved_method(None)
    windows = [KvGroup(("a",), 16), KvGroup(("b",), 16, window_tokens=32)]
    refuse_unserved_layers(SimpleNamespace(speculative_config=speculating("ngram")), windows)


def test_should_refuse_drafts_whose_pages_are_not_like_the_model_s() -> None:
    full, windowed = KvGroup(("a",), 16), KvGroup(("b",), 16, window_tokens=32)
    drafting = config("kv_producer")
    drafting.speculative_config = speculating()
    refuse_unserved_layers(drafting, [full])
    with pytest.raises(
        OptionError, match="of kinds full in group 0, window in group 1, expected full attention in one"
    ):
        refuse_unserved_layers(drafting, [full, windowed])
    with pytest.raises(OptionError, match="of kinds latent in group 0, expected full attention"):
        refuse_unserved_layers(drafting, [KvGroup(("a",), 16, latent=True)])
    staged = config("kv_producer", pipeline_parallel_size=2)
    staged.speculative_config = speculating()
    with pytest.raises(OptionError, match="pipeline_parallel_size is 2 and --speculative-config names a draft with KV"):
        refuse_unserved_layers(staged, [full])
    drafting.speculative_config = speculating("mtp", modules=2)
    with pytest.raises(OptionError, match="the model has 2 modules for multi-token prediction, expected 1: vLLM"):
        refuse_unserved_layers(drafting, [full])
    drafting.speculative_config = speculating("mtp")
    refuse_unserved_layers(drafting, [full])


@pytest.mark.parametrize(("method", "has_kv"), [("ngram", False), ("eagle", True)])
def test_should_pull_beside_drafts(vllm_release: Release, method: str, has_kv: bool) -> None:
    drafted = LAYERS + DRAFTED if has_kv else LAYERS
    engine = SimulatedEngine(vllm_release, "kv_both", layers=drafted, speculative=speculating(method), recompute=True)
    rules = engine.own_scheduler._half._offers._rules
    assert (rules.asks_none_because, rules.offers_none_because, rules.has_drafts) == ("", "", has_kv)
