from __future__ import annotations

import re

import pytest
from release import Release

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
