from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from release import Release
from simulated_engine import remote_decode

from kv_connector.vllm.request_name import RequestName, is_transfer_id, read_name, transfer_of


@pytest.mark.parametrize(
    ("request_id", "expected"),
    [
        ("chatcmpl-a-89abcdef", RequestName("chatcmpl-a", 0, 0, "0_chatcmpl-a-89abcdef")),
        ("0_chatcmpl-a-89abcdef", RequestName("chatcmpl-a", 0, 0, "0_chatcmpl-a-89abcdef")),
        ("2_chatcmpl-a-89abcdef", RequestName("chatcmpl-a", 0, 2, "0_chatcmpl-a-89abcdef")),
        ("cmpl-a-0-89abcdef", RequestName("cmpl-a-0", 0, 0, "0_cmpl-a-0-89abcdef")),
        ("1_cmpl-a-7-89abcdef", RequestName("cmpl-a-0", 7, 1, "0_cmpl-a-7-89abcdef")),
        ("chatcmpl-mine-7-89abcdef", RequestName("chatcmpl-mine-7", 0, 0, "0_chatcmpl-mine-7-89abcdef")),
        ("cmpl-a\nb-3-89abcdef", RequestName("cmpl-a\nb-0", 3, 0, "0_cmpl-a\nb-3-89abcdef")),
        (
            "resp_0123456789abcdef_2-89abcdef",
            RequestName("resp_0123456789abcdef_2", 0, 0, "0_resp_0123456789abcdef_2-89abcdef", 2),
        ),
        ("resp_mine_2-89abcdef", RequestName("resp_mine_2", 0, 0, "0_resp_mine_2-89abcdef")),
        ("", RequestName("", 0, 0, "0_")),
    ],
)
def test_should_take_request_ids_apart(request_id: str, expected: RequestName) -> None:
    assert read_name(request_id) == expected


def test_should_know_how_the_release_makes_ids(vllm_release: Release) -> None:
    vllm = vllm_release.folder / "vllm"
    made = {
        "v1/engine/input_processor.py": 'request.request_id = f"{request.external_req_id}-{random_uuid():.8}"',
        "v1/engine/parallel_sampling.py": 'child_req_id = f"{index}_{self.request_id}"',
    }
    for name, line in made.items():
        assert line in (vllm / name).read_text(), name
    serving = (vllm / "entrypoints" / "openai" / "completion" / "serving.py").read_text()
    assert re.search(r'request_id = (\(\s*)?f"cmpl-', serving)
    assert 'request_id_item = f"{request_id}-{i}"' in serving


def test_should_make_ids_that_frames_can_carry() -> None:
    assert transfer_of("a", 0) == "a"
    assert transfer_of("a", 2) == "a#2"
    made = [transfer_of("x" * 512, 0), transfer_of("x" * 512, 1), transfer_of("x" * 512, 2), transfer_of("x" * 600, 0)]
    assert made[0] == "x" * 512
    assert len(set(made)) == 4
    assert all(is_transfer_id(each) for each in made)


CLIENTS_IDS = [
    "req-00000001",
    "user-20261125",
    "a-89abcdef",
    "3f2c-deadbeef",
    "plain",
    "x-1234567",
    "a\nb-00000001",
    "-00000000",
]
KINDS = ["chatcmpl-{}", "cmpl-{}-0", "generate-tokens-{}", "{}"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("client", CLIENTS_IDS)
@pytest.mark.parametrize("prefiller_adds", [True, False])
@pytest.mark.parametrize("decoder_adds", [True, False])
def test_should_bring_the_legs_together_whichever_side_adds_a_suffix(
    kind: str, client: str, prefiller_adds: bool, decoder_adds: bool
) -> None:
    """VLLM_DISABLE_REQUEST_ID_RANDOMIZATION on one side only, and ids of clients that look like vLLM's suffix."""
    shared = set()
    for adds, suffix in ((prefiller_adds, "-01234567"), (decoder_adds, "-fedcba98")):
        request_id = kind.format(client) + (suffix if adds else "")
        shared.add(read_name(request_id, has_suffix=adds).shared)
    assert len(shared) == 1


@pytest.mark.parametrize(("value", "has_suffix"), [("1", False), ("0", True), (None, True)])
def test_should_read_whether_this_vllm_adds_a_suffix(
    vllm_release: Release, monkeypatch: pytest.MonkeyPatch, value: str | None, has_suffix: bool
) -> None:
    name = "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"
    assert f'"{name}": lambda: bool(' in (vllm_release.folder / "vllm" / "envs.py").read_text()
    envs = SimpleNamespace(**({} if value is None else {name: bool(int(value))}))
    monkeypatch.setattr(sys.modules["vllm"], "envs", envs, raising=False)
    assert vllm_release.vllm_api.ids_are_randomised() == has_suffix


def test_should_cut_no_id_where_this_engine_adds_nothing(
    engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for adds, transfer in ((True, "chatcmpl-req"), (False, "chatcmpl-req-00000001")):
        monkeypatch.setattr(sys.modules["kv_connector.vllm.connector"], "ids_are_randomised", lambda adds=adds: adds)
        prefiller = engine("kv_producer")
        prefiller.add("chatcmpl-req-00000001", 300, remote_decode())
        prefiller.step()
        assert [each["transfer"] for each in prefiller.messenger.of_kind("announce")] == [transfer]
