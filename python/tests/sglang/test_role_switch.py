"""Both sides change their roles: what one of them had goes, and the other one is made over the same pages."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kv_connector import MessengerError

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]
SWITCHES = 6
SETTLED_AFTER = 2
"""Switches; what a process makes once is there then."""


@pytest.fixture
def pair(sglang_plugins: None, tmp_path: Path) -> Iterator[Pair]:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):  # importing SGLang warns of what the machine lacks
        import torch
        from one_process import Pair

        from kv_connector.sglang.shared_memory import SharedZeros

        with SharedZeros(torch):  # as the hooks have it around SGLang's own allocations
            opened = Pair(tmp_path)
            yield opened
    opened.close()


def begun(pair: Pair, room: int, targets: list[int], slot: int) -> tuple[Any, Any]:
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    sender, receiver = pair.sender(room), pair.receiver(room)
    receiver.send_metadata(pages(*targets), slot)
    wait_for(sender, KVPoll.WaitingForInput)
    return sender, receiver


def moves(pair: Pair, slot: int) -> None:
    """A request whose every byte is compared."""
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    sources, targets, room = [3, 7, 5], [9, 2, 11], pair.next_room()
    sender, receiver = begun(pair, room, targets, slot)
    pair.write_metadata(slot, room, 44)
    sender.init(len(sources), slot)
    sender.send(pages(*sources))
    wait_for(sender, KVPoll.Success)
    wait_for(receiver, KVPoll.Success)
    pair.assert_equal_pages(sources, targets)
    assert int(pair.decoder.metadata.output_ids[slot, 0]) == 44
    sender.clear()
    receiver.clear()


def held_by_process() -> dict[str, int]:
    gc.collect()  # metadata of the last role goes with its tensors
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "mapped memfds": maps.count("/memfd:kv-messenger"),
    }


def test_should_move_pages_in_either_role_and_leave_nothing_of_the_last(pair: Pair) -> None:
    held = []
    for switch in range(SWITCHES + 1):
        pair.prefiller.scribble(10 + switch)
        pair.decoder.scribble(20 + switch)
        moves(pair, slot=switch % 4)
        if switch < SWITCHES:
            pair.switch_roles()
            held.append(held_by_process())
    assert held[-1] == held[SETTLED_AFTER], held


def test_should_not_end_a_role_in_which_kv_may_still_come(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv_connector.sglang.endpoint.SETTLE_LIMIT_SECONDS", 0.05)
    begun(pair, pair.next_room(), [4, 5], 0)
    for side in (pair.decoder, pair.prefiller):
        with pytest.raises(MessengerError, match=r"change its role and its requests still hold .* start it again"):
            side.endpoint.teardown()


def test_should_say_of_its_weights_what_it_has_loaded_not_what_its_folder_has_since(pair: Pair, tmp_path: Path) -> None:
    """A later training is put into the same folder; a peer that starts from it then must not take this one's KV."""
    from test_weights_digest import trained, write

    from kv_connector.sglang import engine_facts

    def state() -> tuple[str, str]:
        sides = (pair.prefiller, pair.decoder)
        first, second = (
            engine_facts.read(side.endpoint._server_args, side.endpoint.kv_args, side.endpoint._mode) for side in sides
        )
        return first.weights_digest, second.weights_digest

    before = state()
    write(tmp_path / "model.safetensors", trained(1))
    pair.switch_roles()
    assert state() == before
