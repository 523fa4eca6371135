"""A real SGLang on a CUDA that computes nothing, and one on the CPU of the same host, whose memory the first writes to.

Over `shm` a device can be a source only, so that this is the one pair of engines that has device memory staged over it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import make_model
import pytest
import warm_sglang
from gpu_check.sglang_checks import FIRST_PASS
from gpu_check.sglang_on_torch.plan import DECODER, PREFILLER, SglangPlan
from gpu_check.sglang_on_torch.servers import SglangPair, started
from gpu_check.vllm_checks import AT_ONCE, PAGES, PROMPTS, options
from prompts import cache_home
from server_process import ServerFailed, metric_sum

from uncomputed.sglang_sides import LAUNCHER, LIMIT_SECONDS, UncomputedSglang, by_device
from uncomputed.test_sglang import ANSWER_TOKENS, NO_GRAPHS, PARTS, asked

pytestmark = pytest.mark.at_length

ON_CPU: dict[str, Any] = {"device": "cpu", "attention": "torch_native", "overlap": False, **NO_GRAPHS}
MODEL = make_model.TinyModel(seed=20)
NOT_COMPUTED = "built.rope.RotaryEmbedding.64.64.cos_sin_cache"
"""What the device's side would have computed when it started: all zeros there."""
SHORT_COPIES = "STAND_IN_SHORT_COPIES"
NOT_REACHED = (
    r"the data paths to .* ended \(UNREACHABLE\): shm: shm does not reach all memory of the target: name in transports,"
    r" on both sides, one that reaches the memory of both, such as tcp"
)
ALONE = (
    "KV Messenger cannot start: memory of device 0 is reached by none of the transports [shm]: name tcp among them, or"
)


@pytest.fixture(scope="module", autouse=True)
def launchers() -> Iterator[None]:
    yield
    for launcher in (LAUNCHER, warm_sglang.LAUNCHER):
        launcher.stop()


def plan_of(name: str, transports: Sequence[str], **given: Any) -> SglangPlan:
    model = str(make_model.cached_model(cache_home(), MODEL))
    messenger = options("", transports=list(transports), last_token_check="off", settings_may_differ=[NOT_COMPUTED])
    return SglangPlan(name, model, chunk_tokens=512, options=messenger, **given)


def to_cpu(name: str, logs: Path) -> AbstractContextManager[SglangPair]:
    """From a device. Its side has a second transport, since over `shm` alone nothing reaches its own memory."""
    pair: AbstractContextManager[SglangPair] = started(
        plan_of(name, ["shm"], **ON_CPU), logs, by_device, plan_of(name, ["shm", "tcp"])
    )
    return pair


def test_rows_from_a_device_are_right_in_the_memory_of_a_decoder_on_the_cpu(tmp_path: Path) -> None:
    with to_cpu("staged-shm-to-cpu", tmp_path) as pair:
        asked(pair)
        sent, received = pair.prefiller.rest(), pair.decoder.rest()
        page, log = pair.prefiller.page(), pair.prefiller.server.log()
    print(f"staged-shm-to-cpu: {sent}, {received}")
    assert sent["held"] | received["held"] == {}
    left, arrived = sent["figures"], received["figures"]
    for figures, contexts in ((left, [[0]]), (arrived, [[]])):
        assert figures["rows_wrong"] == 0, figures["first_wrong"]
        assert figures["contexts"] == contexts
    tokens = sum(map(len, PROMPTS))
    assert left["rows_written"] >= MODEL.layer_count * tokens
    assert arrived["rows_read"] > MODEL.layer_count * (ANSWER_TOKENS - 1) * tokens
    assert arrived["rows_written"] == MODEL.layer_count * (ANSWER_TOKENS - 1) * len(PROMPTS), (
        "the decoder computes none"
    )
    assert (arrived["pages_received"], arrived["fetches_failed"]) == (PARTS * PAGES, 0)
    moved = {
        name: metric_sum(page, "kv_messenger_transport_sent_bytes_total", {"transport": name})
        for name in ("shm", "tcp")
    }
    assert moved["shm"] > 0
    assert moved["tcp"] == 0
    assert FIRST_PASS in log
    assert left["layers_sent_early"], f"none of {left['layers_sent']:.0f} layers left before its pass ended"


def test_a_byte_that_is_not_copied_from_the_device_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHORT_COPIES, "1")
    with to_cpu("short-copies", tmp_path) as pair:
        asked(pair)
        sent, received = pair.prefiller.rest(), pair.decoder.rest()
    assert sent["figures"]["rows_wrong"] == 0
    assert received["figures"]["rows_wrong"] > 0
    assert received["figures"]["pages_received"] == PARTS * PAGES


def test_a_decoder_on_a_device_refuses_what_only_shm_could_bring(tmp_path: Path) -> None:
    name = "shm-to-device"
    decoder, prefiller = plan_of(name, ["shm", "tcp"]), plan_of(name, ["shm"], **ON_CPU)
    with started(decoder, tmp_path, by_device, prefiller) as pair:
        legs = pair.ask({"input_ids": AT_ONCE[0], "sampling_params": {"temperature": 0, "max_new_tokens": 2}})
        for leg in legs:
            with pytest.raises(AssertionError, match=NOT_REACHED):
                leg.result(LIMIT_SECONDS)
        assert pair.prefiller.server.answers()
        assert pair.decoder.server.answers()


@pytest.mark.parametrize("role", [PREFILLER, DECODER])
def test_no_engine_starts_on_a_device_with_shm_alone(role: str, tmp_path: Path) -> None:
    plan = plan_of(f"alone-{role}", ["shm"], role=role)
    with pytest.raises(ServerFailed), UncomputedSglang(plan, tmp_path) as server:
        server.ready()
    assert ALONE in (tmp_path / f"{plan.name}.log").read_text("utf-8")
