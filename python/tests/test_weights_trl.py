"""The object that TRL gets, without TRL and torch: what it copies, what it refuses, which servers it goes on with."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Self

import pytest

from kv_connector.exceptions import OptionError, WeightsError
from kv_connector.weights import trl
from kv_connector.weights.experts import named_as_in
from kv_connector.weights.manifest import ALIGNMENT_BYTES, Manifest, ManifestError
from kv_connector.weights.staging import Staging
from kv_connector.weights.trl import KvMessengerWeightTransfer

URLS = ("http://127.0.0.1:8000", "http://127.0.0.1:8001")


class Tensor:
    """What is used of a torch tensor."""

    def __init__(self, content: bytes, shape: Sequence[int], dtype: str = "torch.float32") -> None:
        self._buffer = ctypes.create_string_buffer(content, len(content))
        self.shape = tuple(shape)
        self.dtype = dtype
        self.nbytes = len(content)

    def detach(self) -> Self:
        return self

    def cpu(self) -> Self:
        return self

    def contiguous(self) -> Self:
        return self

    def is_floating_point(self) -> bool:
        return False  # of its values nothing is asked

    def data_ptr(self) -> int:
        return ctypes.addressof(self._buffer)


class Elsewhere(Tensor):
    def cpu(self) -> Self:
        raise NotImplementedError("Cannot copy out of meta tensor")


class Part(Tensor):
    def full_tensor(self) -> Tensor: ...


def tensors(first: bytes = b"aaaabbbb") -> list[tuple[str, Tensor]]:
    return [("w", Tensor(first, [2])), ("empty", Tensor(b"", [0])), ("scalar", Tensor(b"12", [], "torch.bfloat16"))]


@dataclass
class Pass:
    """A trainer's pass over its tensors, and how far it has gone."""

    given: Sequence[tuple[str, Tensor]]
    taken: int = 0

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for pair in self.given:
            self.taken += 1
            yield pair


def test_a_pass_is_copied_to_the_places_of_the_manifest_and_the_next_one_to_the_same() -> None:
    staging = Staging()
    manifest, memory = staging.take(iter(tensors()))
    assert [(place.name, place.dtype, place.shape) for place in manifest.places] == [
        ("w", "float32", (2,)),
        ("empty", "float32", (0,)),
        ("scalar", "bfloat16", ()),
    ]
    assert memory.length_bytes == manifest.length_bytes == 2 * ALIGNMENT_BYTES
    assert bytes(memory.view) == b"aaaabbbb".ljust(ALIGNMENT_BYTES, b"\0") + b"12".ljust(ALIGNMENT_BYTES, b"\0")
    assert staging.take(iter(tensors(b"ccccdddd"))) == (manifest, memory)
    assert bytes(memory.view[:8]) == b"ccccdddd"


def test_the_first_pass_and_the_manifest_agree_on_all_places() -> None:
    given = [(f"t{index}", Tensor(bytes([index]) * 4 * index, [index])) for index in range(1, 60)]
    manifest, memory = Staging().take(given)
    for place, (_, tensor) in zip(manifest.places, given, strict=True):
        there = memory.view[place.offset_bytes : place.offset_bytes + place.length_bytes]
        assert bytes(there) == ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Tensor(b"1234", [1], "torch.complex32"), "tensor x has elements of type complex32, expected one of"),
        (Tensor(b"123", [1]), r"tensor x has 3 bytes, expected the 4 of x \(float32 \[1\]\)"),
        (Elsewhere(b"1234", [1]), "tensor x cannot be copied to this host's memory: Cannot copy out of meta"),
        (Part(b"1234", [1]), "tensor x is one rank's part, expected a whole tensor"),
    ],
)
def test_a_tensor_that_cannot_be_sent_is_named_when_the_pass_is_over(wrong: Tensor, words: str) -> None:
    whole = Pass([("x", wrong), *tensors()])
    with pytest.raises(WeightsError, match=words):
        Staging().take(whole)
    assert whole.taken == 4, "the other ranks gather all of them"


def test_a_pass_without_tensors_is_refused() -> None:
    with pytest.raises(ManifestError, match="no bytes"):
        Staging().take([])


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ([*tensors(), ("more", Tensor(b"1234", [1]))], r"tensor 3 is more \(float32 \[1\]\), and was not there"),
        (tensors()[:2], r"there are 2 tensors, and were 3 in the first update \(scalar \(bfloat16 \[\]\) is missing\)"),
        ([("w", Tensor(b"1234", [2], "torch.bfloat16"))], r"is w \(bfloat16 \[2\]\), and was w \(float32 \[2\]\)"),
        ([("v", Tensor(b"12345678", [2]))], r"is v \(float32 \[2\]\), and was w"),
    ],
)
def test_later_updates_have_the_tensors_of_the_first(later: Sequence[tuple[str, Tensor]], words: str) -> None:
    staging = Staging()
    staging.take(tensors())
    whole = Pass(later)
    with pytest.raises(WeightsError, match=words):
        staging.take(whole)
    assert whole.taken == len(later)


def test_fused_experts_get_the_names_of_a_checkpoint_that_has_each_apart() -> None:
    experts = "model.layers.1.mlp.experts"
    names = [f"{experts}.{number}.{part}_proj.weight" for number in (0, 1) for part in ("gate", "up")]
    served = Manifest.of(
        [
            *((name, "float32", [3, 5]) for name in names),
            *((f"{experts}.{number}.down_proj.weight", "float32", [5, 3]) for number in (0, 1)),
            ("norm", "float32", [5]),
        ]
    )
    sent = Manifest.of(
        [
            (f"{experts}.gate_up_proj", "bfloat16", [2, 6, 5]),
            (f"{experts}.down_proj", "bfloat16", [2, 5, 3]),
            ("norm", "bfloat16", [5]),
        ]
    )
    renamed = named_as_in(served, sent)
    assert not renamed.difference_from(served)
    assert (renamed.length_bytes, renamed.digest) == (sent.length_bytes, sent.digest)
    assert [(place.name, place.offset_bytes) for place in renamed.places[:4]] == list(
        zip(names, (0, 30, 60, 90), strict=True)
    )
    assert [place.offset_bytes for place in renamed.places[4:]] == [128, 158, 192]
    fused = Manifest.of([(place.name, "float32", place.shape) for place in sent.places])
    assert named_as_in(fused, sent) == sent, "an engine whose checkpoint has fused experts loads those"


def test_a_tied_head_may_be_missing() -> None:
    sent = Manifest.of([("embed", "float32", [2])])
    served = Manifest.of([("embed", "float32", [2]), ("lm_head.weight", "float32", [2])])
    assert "lm_head.weight is missing" in sent.difference_from(served)
    assert not sent.difference_from(served, frozenset({"lm_head.weight"}))


@dataclass
class Sender:
    """A WeightSender that sends nothing, and reports what the test has planned."""

    plans: list[Mapping[str, str]]
    opened: int = 0
    closed: int = 0
    versions: list[int] = field(default_factory=list)
    fault: BaseException | None = None

    def __call__(self, *_: object) -> Self:
        self.opened += 1
        return self

    def connect(self) -> dict[str, str]:
        return dict(self.plans.pop(0))

    def send(self, version: int, _limit_seconds: float) -> dict[str, str]:
        self.versions.append(version)
        if self.fault is not None:
            raise self.fault
        return dict(self.plans.pop(0))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Sender:
    made = Sender([])
    monkeypatch.setattr(trl, "WeightSender", made)
    return made


def test_each_update_has_a_newer_version_and_the_connection_stays(sender: Sender) -> None:
    transfer = KvMessengerWeightTransfer(URLS, first_version=7)
    sender.plans = [{}, {}, {}]
    for _ in range(2):
        transfer.pause()
        transfer.send_weights(iter(tensors()))
        transfer.resume()
    assert (sender.versions, sender.opened, sender.closed) == ([7, 8], 1, 0)
    transfer.destroy()
    transfer.destroy()
    assert sender.closed == 1
    sender.plans = [{}, {}]
    transfer.send_weights(iter(tensors()))
    assert (sender.versions[2:], sender.opened) == ([9], 2), "a second train() of the same trainer"


def test_the_time_is_the_version_where_none_is_named(sender: Sender) -> None:
    transfer = KvMessengerWeightTransfer(URLS)
    sender.plans = [{}, {}, {}]
    transfer.send_weights(iter(tensors()))
    transfer.send_weights(iter(tensors()))
    assert 1_700_000_000_000 < sender.versions[0] < sender.versions[1]


@pytest.mark.parametrize("plans", [[{URLS[1]: "why"}, {}], [{}, {URLS[1]: "why"}], [dict.fromkeys(URLS, "why")]])
def test_the_first_update_succeeds_everywhere_or_raises(sender: Sender, plans: list[Mapping[str, str]]) -> None:
    sender.plans = plans
    with pytest.raises(WeightsError, match=f"{URLS[1]}: why"):
        KvMessengerWeightTransfer(URLS).send_weights(iter(tensors()))
    assert sender.closed == 1


def test_a_server_that_misses_a_later_update_is_asked_again(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    transfer = KvMessengerWeightTransfer(URLS)
    sender.plans = [{}, {}, {URLS[1]: "it is stopped"}, {}, {}, dict.fromkeys(URLS, "gone")]
    for _ in range(3):
        transfer.send_weights(iter(tensors()))
    assert f"{URLS[1]}: it is stopped" in caplog.text
    assert (sender.opened, sender.closed) == (2, 1)
    with pytest.raises(WeightsError, match=f"{URLS[0]}: gone; {URLS[1]}: gone"):
        transfer.send_weights(iter(tensors()))


def test_an_interrupted_update_leaves_no_connection(sender: Sender) -> None:
    sender.plans, sender.fault = [{}], KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        KvMessengerWeightTransfer(URLS).send_weights(iter(tensors()))
    assert sender.closed == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"servers": []}, r"servers are \[\], expected URLs"),
        ({"servers": [URLS[0], f"{URLS[0]}/"]}, "each once"),
        ({"servers": URLS, "first_version": -1}, "first_version is -1"),
        ({"servers": URLS, "listen": "10.0.0.7"}, "listen is '10.0.0.7', which needs a weights_secret"),
        ({"servers": URLS, "listen": "10.0.0.7:x"}, "listen is '10.0.0.7:x', expected HOST or HOST:PORT"),
        ({"servers": URLS, "options": {"weights_secrets": "x"}}, "weights_secrets"),
    ],
)
def test_what_a_user_has_wrong_is_one_sentence(
    arguments: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KV_MESSENGER_WEIGHTS_SECRET_FILE", raising=False)
    with pytest.raises((OptionError, WeightsError), match=words):
        KvMessengerWeightTransfer(**arguments)


@contextmanager
def server_with(pages: Mapping[str, object]) -> Iterator[str]:
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            self.send_response(404 if page is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(page).encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        ({}, "has no route /server_info: start it with VLLM_SERVER_DEV_MODE=1"),
        ({"/server_info": {"vllm_config": {"weight_transfer_config": None}}}, "has the weight transfer backend None"),
        (
            {"/server_info": {"vllm_config": {"weight_transfer_config": {"backend": "nccl"}}}},
            "backend 'nccl', expected",
        ),
    ],
)
def test_a_server_that_cannot_take_weights_is_refused_before_training(pages: Mapping[str, object], words: str) -> None:
    with server_with({"/version": {}, **pages}) as url, pytest.raises(WeightsError, match=words):
        KvMessengerWeightTransfer(url).init_weight_transfer()


def test_servers_are_waited_for_and_one_that_takes_weights_is_taken() -> None:
    info = {"vllm_config": {"weight_transfer_config": {"backend": "kv_messenger"}}}
    with server_with({"/version": {}, "/server_info": info}) as url:
        KvMessengerWeightTransfer([url]).init_weight_transfer()
    with pytest.raises(WeightsError, match=f"{url}/version did not answer: .*, and was waited for 0 s: start it"):
        KvMessengerWeightTransfer([url], ready_limit_seconds=0).init_weight_transfer()
