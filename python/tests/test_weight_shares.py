"""What each rank of a trainer has, and a server's landings of several ranks: all are loaded, or none."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.configuration.weights_options import parse_weights_options
from kv_connector.weights import served as served_checkpoint
from kv_connector.weights import shares_host
from kv_connector.weights.manifest import Manifest, ManifestError
from kv_connector.weights.served import ServedCheckpoint
from kv_connector.weights.shares import LANDINGS_MAX, Share, rows_of
from kv_connector.weights.shares_host import SharesHost

UPDATE = 7
WHOLE = Manifest.of([("w", "int8", [5, 3]), ("norm", "int8", [4]), ("one", "int8", [1, 2])])
SPLIT = (True, False, True)


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("rows", range(12))
def test_every_row_is_of_one_rank(rows: int, count: int) -> None:
    assert [row for rank in range(count) for row in rows_of(rows, rank, count)] == list(range(rows))


def test_a_share_has_its_rows_and_rank_0_what_is_not_split() -> None:
    first, second = (Share.of(WHOLE, SPLIT, rank, 2) for rank in range(2))
    assert [(place.name, place.shape) for place in first.own.places] == [("w", (3, 3)), ("norm", (4,)), ("one", (1, 2))]
    assert [(place.name, place.shape) for place in second.own.places] == [("w", (2, 3)), ("one", (0, 2))]
    assert [share.own.digest for share in second.of_all_ranks()] == [first.own.digest, second.own.digest]
    assert Share.announced(second.described()) == second


@pytest.mark.parametrize("count", [*range(2, 24), 64, 255, 256, 300])
def test_all_shares_are_those_that_each_rank_makes(count: int) -> None:
    """A server makes few of them: trainers have many ranks, and models many names."""
    rows = (1, 2, count - 1, count, count + 1, 3 * count, 5 * count - 2, 577)
    whole = Manifest.of([*((f"t{each}", "int8", [each, 3]) for each in {*rows, 1}), ("norm", "int8", [4])])
    split = (True,) * (len(whole.places) - 1) + (False,)
    shares = list(Share.of(whole, split, 1, count).of_all_ranks())
    assert shares == [Share.of(whole, split, rank, count) for rank in range(count)]
    assert len({id(share.own) for share in shares}) <= 2 * len(rows) + 2


def test_more_ranks_than_a_server_has_room_for_are_refused(host: SharesHost) -> None:
    """Their shares are known all the same: a trainer's plan is made without a server."""
    count = LANDINGS_MAX + 1
    whole = Manifest.of([("w", "int8", [2 * count, 3])])
    host.dial("s", "t", Share.of(whole, (True,), 0, count), "")
    (landing,) = host._hosts
    assert f"the trainer has {count} ranks that send, expected at most {LANDINGS_MAX}" in landing.dialled[0][2]
    assert landing.landing is None


def test_a_sender_of_whole_tensors_has_the_only_share() -> None:
    share = Share.announced(WHOLE.described())
    assert (share.count, share.own) == (1, WHOLE)
    assert share.described() == WHOLE.described()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank_count": 0}, "the share is rank 0's of 0"),
        ({"rank": 2}, "the share is rank 2's of 2"),
        ({"rank": -1}, "the share is rank -1's of 2"),
        ({"split": [True]}, "with 1 of 3 tensors"),
    ],
)
def test_what_no_rank_has_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        Share.announced(Share.of(WHOLE, SPLIT, 0, 2).described() | change)


def test_a_tensor_without_rows_is_not_split() -> None:
    with pytest.raises(ManifestError, match="tensor s has no rows, and is split"):
        Share.of(Manifest.of([("s", "int8", [])]), (True,), 0, 2)


def test_fused_experts_are_refused_from_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    experts = [f"e.{number}.{part}_proj.weight" for number in range(2) for part in ("gate", "up")]
    served = Manifest.of([(name, "int8", [2, 3]) for name in experts])
    fused = Manifest.of([("e.gate_up_proj", "int8", [2, 4, 3])])
    monkeypatch.setattr(served_checkpoint, "served_manifest", lambda _find: served)

    def unfit(share: Share) -> str:
        return ServedCheckpoint().unfit(share, lambda: Path("folder"), tied=False)

    down = [(f"e.{number}.down_proj.weight", "int8", [3, 2]) for number in range(2)]
    assert "experts that are fused" in unfit(Share.of(fused, (True,), 0, 2))
    assert unfit(Share.of(fused, (False,), 0, 1)) == ""
    assert unfit(Share.of(served, (True,) * 4, 0, 2)) == ""
    assert "tensor e.0.down_proj.weight is of shape" in unfit(Share.of(Manifest.of(down), (True,) * 2, 0, 2))


class Landing:
    """In place of one landing and its messenger."""

    def __init__(self, options: Any, _logger: logging.Logger) -> None:
        self.metrics_port = options.metrics_port
        self.reason = ""
        self.version = 70
        self.digest = "d1"
        self.landing: Any = None
        self.is_taken = False
        self.dialled: list[tuple[str, Manifest, str]] = []
        self.reports: list[tuple[int, str]] = []

    def dial(self, sender: str, _ticket: str, manifest: Manifest, unfit: str) -> None:
        self.dialled.append((sender, manifest, unfit))
        self.is_taken = self.is_taken or not unfit
        if not unfit:
            self.landing = SimpleNamespace(memfd=len(sender), length_bytes=manifest.length_bytes)

    def decide(self, _update_id: int) -> str:
        return self.reason

    def version_of(self, _update_id: int) -> int:
        return self.version

    def digest_of(self, _update_id: int) -> str:
        return self.digest

    def applied(self, update_id: int, failure: str = "") -> None:
        self.reports.append((update_id, failure))

    def status(self) -> dict[str, object]:
        return {"landing": f"{self.landing.length_bytes} bytes", "ended": {}}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> SharesHost:
    monkeypatch.setattr(shares_host, "WeightsHost", Landing)
    options = parse_weights_options({"weights_metrics_port": 0}, sends=False, engine_id="w", environment={})
    return SharesHost(options, logging.getLogger("w"))


def shared(host: SharesHost) -> list[Any]:
    """Its landings, one for each of two ranks that have dialled."""
    for rank in range(2):
        host.dial(f"{'s' * (rank + 1)}", "t", Share.of(WHOLE, SPLIT, rank, 2), "")
    landings: list[Any] = host._hosts
    return landings


def test_all_landings_of_one_version_are_loaded(host: SharesHost) -> None:
    landings = shared(host)
    assert [landing.metrics_port for landing in landings] == [0, -1]
    assert [landing.dialled[0][1].length_bytes for landing in landings] == [192, 64]
    decision = host.decide(UPDATE, WHOLE)
    assert (decision.reason, decision.version, decision.memfds, decision.manifest) == ("", 70, (1, 2), WHOLE)
    host.applied(UPDATE)
    assert [landing.reports for landing in landings] == [[(UPDATE, "")]] * 2
    assert host.status()["landing"] == "192 bytes; of the trainer's rank 1: 64 bytes"


@pytest.mark.parametrize("rank", range(2))
def test_nothing_is_loaded_if_one_has_not_landed(host: SharesHost, rank: int) -> None:
    shared(host)[rank].reason = "it has not landed"
    decision = host.decide(UPDATE, WHOLE)
    assert (decision.reason, decision.memfds) == ("it has not landed", ())


@pytest.mark.parametrize("rank", range(2))
def test_nothing_is_loaded_of_two_versions(host: SharesHost, rank: int) -> None:
    shared(host)[rank].version = 69
    assert "sent versions [69, 70], expected one of all" in host.decide(UPDATE, WHOLE).reason


def test_nothing_is_loaded_under_another_name_or_without_a_sender(host: SharesHost) -> None:
    assert host.decide(UPDATE, WHOLE).reason == "this server has no landing"
    shared(host)
    assert host.decide(UPDATE, WHOLE, named="71").reason == "the update is named 71, and what has landed is version 70"
    assert host.decide(UPDATE, WHOLE, "KV is held").reason == "KV is held"
    assert host.decide(UPDATE, WHOLE, named="70").reason == ""


@pytest.mark.parametrize("other", [Share.of(WHOLE, SPLIT, 2, 3), Share.of(WHOLE, (False,) * 3, 0, 1)])
def test_another_division_is_refused_once_something_can_land(host: SharesHost, other: Share) -> None:
    landings = shared(host)
    host.dial("other", "t", other, "")
    assert "expected" not in landings[0].dialled[-1][2]
    assert f"the tensors come from {other.count} trainer ranks, and came from 2" in landings[0].dialled[-1][2]


def test_a_division_that_nothing_has_landed_of_is_not_kept(host: SharesHost) -> None:
    host.dial("s", "t", Share.of(WHOLE, SPLIT, 0, 2), "it does not fit")
    host.dial("s", "t", Share.of(WHOLE, (False,) * 3, 0, 1), "")
    assert host.decide(UPDATE, WHOLE).memfds == (1,)
