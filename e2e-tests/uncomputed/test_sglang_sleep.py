"""Real SGLang whose sides give KV memory back by torch_memory_saver's own library, and take it again."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_check.sglang_on_torch.plan import POOL_TOKENS
from gpu_check.sglang_on_torch.servers import SglangPair, started
from server_process import Server
from warm_sglang import PRELOADED, WarmSglang
from warm_starts import WarmLauncher

from uncomputed.sglang_sides import UncomputedSglang, environment
from uncomputed.test_sglang import Case, asked

pytestmark = pytest.mark.at_length

SAVER = "torch_memory_saver"
KV = {"tags": ["kv_cache"]}
KV_BYTES = POOL_TOKENS * 4 * 2 * 4 * 64 * 2
"""Of all layers: keys and values of 4 heads with 64 numbers of 2 bytes."""


def environment_with_saver() -> dict[str, str]:
    """Of the process that servers are forked from: the saver's library has to be there when a process begins."""
    package = importlib.util.find_spec(SAVER)
    assert package is not None
    assert package.origin is not None
    library = Path(package.origin).parents[1] / f"{SAVER}_hook_mode_preload_cu13.abi3.so"
    given = environment()
    return given | {"LD_PRELOAD": f"{library}:{given['LD_PRELOAD']}"}


LAUNCHER = WarmLauncher(("uncomputed.sglang_preloaded", *PRELOADED), environment_with_saver)


class WarmSaving(WarmSglang):
    launcher = LAUNCHER


class Saving(UncomputedSglang):
    """A server with --enable-memory-saver."""

    def kind(self) -> type[Server]:
        return WarmSaving

    def give_back(self) -> None:
        """The device has the memory of KV again."""
        before = self.used_bytes()
        self.server.post("/release_memory_occupation", KV)
        assert before - self.used_bytes() >= KV_BYTES

    def take_again(self) -> None:
        before = self.used_bytes()
        self.server.post("/resume_memory_occupation", KV)
        assert self.used_bytes() - before >= KV_BYTES


@pytest.fixture(scope="module", autouse=True)
def launcher() -> Iterator[None]:
    yield
    LAUNCHER.stop()


def test_a_pair_serves_before_between_and_after_sleeps(tmp_path: Path) -> None:
    plan = Case("tcp", {"gives_memory_back": True}).plan("sleep")
    with started(plan, tmp_path, Saving) as pair:
        asked(pair)
        for asleep in ([pair.decoder], [pair.prefiller], [pair.prefiller, pair.decoder]):
            settled(pair)
            for side in asleep:
                side.give_back()
            for side in asleep:
                side.take_again()
            asked(pair)
        settled(pair)
        for side in (pair.prefiller, pair.decoder):
            assert side.server.log().count("this engine sleeps: its messenger is closed") == 2


def settled(pair: SglangPair) -> None:
    """Both sides at rest, and all rows right so far."""
    for side in (pair.prefiller, pair.decoder):
        rest = side.rest()
        assert rest["held"] == {}
        assert rest["figures"]["rows_wrong"] == 0, rest["figures"]["first_wrong"]
        assert rest["figures"]["rows_written"] > 0
