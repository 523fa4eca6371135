"""Weights without an engine: manifests, checkpoints' files, options, and which senders a server dials."""

from __future__ import annotations

import ctypes
import json
import logging
import mmap
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kv_connector.cli.main import parser
from kv_connector.cli.weights import lines_of, run, status
from kv_connector.configuration.weights_options import parse_weights_options
from kv_connector.exceptions import OptionError
from kv_connector.runtime import plain_http
from kv_connector.weights.checkpoint import Checkpoint, CheckpointError
from kv_connector.weights.host import WeightsHost
from kv_connector.weights.landing import SharedMemory, map_of_process
from kv_connector.weights.manifest import ALIGNMENT_BYTES, Manifest, ManifestError
from kv_connector.weights.sender_options import listening

SECRET = "a secret of weights"
KV_SECRET = "another one, of KV caches"


def write_file(file: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header, content = {}, b""
    for name, (dtype, shape, stored) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(content), len(content) + len(stored)]}
        content += stored
    head = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(head)) + head + content)


def test_tensors_lie_behind_each_other_and_the_digest_is_of_all_that_counts() -> None:
    manifest = Manifest.of([("a", "bfloat16", [3]), ("b", "float32", [2, 5])])
    assert [place.offset_bytes for place in manifest.places] == [0, ALIGNMENT_BYTES]
    assert manifest.length_bytes == 2 * ALIGNMENT_BYTES
    others = [
        [("a", "float16", [3]), ("b", "float32", [2, 5])],
        [("a", "bfloat16", [3]), ("b", "float32", [5, 2])],
        [("b", "float32", [2, 5]), ("a", "bfloat16", [3])],
        [("a", "bfloat16", [3]), ("c", "float32", [2, 5])],
    ]
    assert len({Manifest.of(other).digest for other in others} | {manifest.digest}) == 5
    described = manifest.described()
    again = zip(described["names"], described["dtype_names"], described["shapes"], strict=True)
    assert Manifest.of(again) == manifest  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([("a", "bfloat16", [1]), ("a", "bfloat16", [1])], "named twice"),
        ([("a", "int4", [1])], "type int4, expected one of"),
        ([("a", "int8", [-1])], r"the shape \[-1\]"),
        ([], "no bytes"),
    ],
)
def test_what_no_manifest_can_have_is_refused(tensors: list[tuple[str, str, list[int]]], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        Manifest.of(tensors)


def test_the_first_tensor_that_differs_is_named() -> None:
    served = Manifest.of([("a", "bfloat16", [3]), ("b", "float32", [2])])
    assert not Manifest.of([("a", "float32", [3]), ("b", "float32", [2])]).difference_from(served)
    other = Manifest.of([("a", "bfloat16", [3]), ("b", "float32", [4])])
    assert other.difference_from(served).startswith("tensor b is of shape [4], and of shape [2] in the checkpoint")
    less = Manifest.of([("a", "bfloat16", [3])])
    assert less.difference_from(served).startswith("tensor b is missing, and of shape [2]")


def test_a_checkpoint_of_several_files_is_read_to_its_places(tmp_path: Path) -> None:
    write_file(tmp_path / "one.safetensors", {"b": ("F32", [2], b"\1\2\3\4\5\6\7\x08"), "empty": ("I8", [0], b"")})
    write_file(tmp_path / "two.safetensors", {"a": ("BF16", [3], b"abcdef")})
    checkpoint = Checkpoint(tmp_path)
    assert [(place.name, place.dtype) for place in checkpoint.manifest.places] == [
        ("a", "bfloat16"),
        ("b", "float32"),
        ("empty", "int8"),
    ]
    memory = SharedMemory(checkpoint.manifest.length_bytes)
    checkpoint.read_into(memory.view)
    assert bytes(memory.view[:6]) == b"abcdef"
    assert bytes(memory.view[64:72]) == b"\1\2\3\4\5\6\7\x08"
    (tmp_path / "two.safetensors").write_bytes((tmp_path / "two.safetensors").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="ends before its last tensor"):
        Checkpoint(tmp_path).read_into(memory.view)


@pytest.mark.parametrize("content", [None, b"", b"\1\0\0\0\0\0\0\0{", struct.pack("<Q", 1 << 40)])
def test_what_is_no_checkpoint_is_refused_in_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="expected a folder with the"):
        Checkpoint(tmp_path)


def test_a_tensor_of_another_length_than_its_shape_says_is_refused(tmp_path: Path) -> None:
    write_file(tmp_path / "model.safetensors", {"a": ("F32", [2], b"1234")})
    with pytest.raises(CheckpointError, match="a has another length"):
        Checkpoint(tmp_path)


def test_a_mapped_landing_is_what_lands_in_it_and_cannot_change_it() -> None:
    memory = SharedMemory(4096)
    mapped = map_of_process(os.getpid(), memory.memfd, 4096)
    memory.view[5] = 7
    assert mapped[5] == 7
    mapped[5] = 9
    assert memory.view[5] == 7


def test_without_its_own_secret_a_messenger_of_weights_has_loopback_only() -> None:
    environment = {"KV_MESSENGER_SECRET": KV_SECRET, "KV_MESSENGER_LISTEN_PORT": "14000"}
    environment |= {"KV_MESSENGER_SHARED_SECRET": "a third"}
    given = {"listen_host": "10.0.0.1", "metrics_port": 14001, "data_port": 14002, "shared_secret": KV_SECRET}
    for sends in (True, False):
        options = parse_weights_options(given, sends=sends, engine_id="w", environment=environment)
        assert (options.listen_host, options.shared_secret, options.data_port) == ("127.0.0.1", "", 0)
        assert options.listen_port == 0
    options = parse_weights_options(
        given | {"weights_secret": SECRET, "weights_metrics_port": 14003},
        sends=False,
        engine_id="w",
        environment=environment,
    )
    assert (options.listen_host, options.shared_secret, options.metrics_port) == ("10.0.0.1", SECRET, 14003)


def test_the_secret_of_weights_is_read_from_its_file_and_only_from_one_place(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n", encoding="utf-8")
    environment = {"KV_MESSENGER_WEIGHTS_SECRET_FILE": str(tmp_path / "secret")}
    options = parse_weights_options({}, sends=True, engine_id="w", environment=environment, listen_port=14600)
    assert (options.shared_secret, options.listen_port, options.metrics_port) == (SECRET, 14600, -1)
    with pytest.raises(OptionError, match="'weights_secret' and 'weights_secret_file' are both set"):
        parse_weights_options({"weights_secret": SECRET}, sends=True, engine_id="w", environment=environment)


@pytest.mark.parametrize(
    ("sender", "words"),
    [
        ("10.0.0.7:14600", "without weights_secret only loopback is"),
        *(
            (wrong, "expected HOST:PORT")
            for wrong in (
                *("nowhere", "", ":14600", "127.0.0.1:", "127.0.0.1:-1", "127.0.0.1:0", "127.0.0.1:65536"),
                *("127.0.0.1:1e3", "127.0.0.1:١٤", "127.0.0.1:14600,127.0.0.1:14601", f"{'a' * 256}:14600"),
            )
        ),
    ],
)
def test_a_server_does_not_dial(sender: str, words: str, caplog: pytest.LogCaptureFixture) -> None:
    options = parse_weights_options({}, sends=False, engine_id="w", environment={})
    host = WeightsHost(options, logging.getLogger("kv_connector"))
    host.dial(sender, "t", Manifest.of([("a", "int8", [1])]), "")
    assert words in caplog.text
    assert host.decide(1) == "no sender is connected"
    assert host.landing is None
    assert host.status() == {"landing": "none, since no sender has come yet"}
    host.applied(1, "a rank has no memory")
    assert "a rank has no memory (0 s ago)" in str(host.status()["refused"])


class DecidingMessenger:
    """Answers a question when the test says so."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.answers_at_once: Callable[[], None] = lambda: None

    def submit(self, commands: list[object]) -> None:
        self.asked += commands
        self.answers_at_once()


def test_a_late_decision_about_an_update_is_none_about_the_next_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv_connector.weights.host.DECISION_SECONDS", 0.05)
    host = WeightsHost(parse_weights_options({}, sends=False, engine_id="w", environment={}), logging.getLogger("w"))
    messenger = DecidingMessenger()
    host._messenger = messenger  # type: ignore[assignment]
    assert "did not answer" in host.decide(7)
    host._on({"event": "decided", "updateId": 7, "reason": ""})
    messenger.answers_at_once = lambda: host._on({"event": "decided", "updateId": 7, "reason": "it has not landed"})
    assert host.decide(7) == "it has not landed"
    messenger.answers_at_once = lambda: None
    assert "did not answer" in host.decide(7)


def test_the_version_is_that_of_the_update_which_has_landed() -> None:
    host = WeightsHost(parse_weights_options({}, sends=False, engine_id="w", environment={}), logging.getLogger("w"))
    host._on({"event": "landed", "updateId": 7, "version": 70, "digest": "ab"})
    assert (host.version_of(7), host.version_of(8)) == (70, 0)
    assert (host.digest_of(7), host.digest_of(8)) == ("ab", "")
    host.applied(7)
    assert host.status()["loaded"] == "version 70, 0 s ago"


def test_a_status_is_lines() -> None:
    status = {
        "landing": "64 bytes, is not written to",
        "ended": {"applied": 2, "sender_lost": 1, "refused": 0},
        "refused": "KV is held (3 s ago)",
    }
    assert lines_of(status) == [
        "landing: 64 bytes, is not written to",
        "last refusal: KV is held (3 s ago)",
        "updates applied: 2",
        "updates sender lost: 1",
    ]
    assert lines_of({}) == []


ANSWERS = [
    *(
        "",
        "<html>",
        "null",
        "3",
        '"x"',
        "[]",
        "{}",
        "[" * 100_000,
        '{"weight_version": ""}',
        '{"weight_version": null}',
    ),
    *(
        json.dumps({"weight_version": "7", **more})
        for seen in (None, 3, [], "x", "[" * 100_000, '{"ended": 3}', '{"ended": {"a": "b"}}', '{"landing": null}')
        for more in (
            {"message": seen},
            {"results": [seen], "vllm_config": {"weight_transfer_config": {"backend": "kv_messenger"}}},
        )
    ),
]
"""Of a server that is none, of another release, or of another program, whatever it is asked."""


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_server_that_answers_anything_gets_a_sentence_or_a_version(
    monkeypatch: pytest.MonkeyPatch, answer: str, engine: str
) -> None:
    def ask(_method: str, url: str, **_more: object) -> plain_http.Answer:
        missing = engine == "sglang" and url.endswith("/version")
        return plain_http.Answer(404 if missing else 200, answer)

    monkeypatch.setattr(plain_http, "ask", ask)
    lines: list[str] = []
    complaints: list[str] = []
    failed = status(["http://127.0.0.1:1"], lines.append, complaints.append)
    assert len(complaints) == failed
    assert all(line.startswith("http://127.0.0.1:1") and len(line) < 400 for line in complaints)
    assert failed or lines[0] == "http://127.0.0.1:1: version 7\n"


def test_where_a_sender_listens_is_read() -> None:
    assert listening("", "--listen") == ("", 0)
    assert listening("10.0.0.7", "--listen") == ("10.0.0.7", 0)
    assert listening("10.0.0.7:14600", "--listen") == ("10.0.0.7", 14600)
    assert listening("[::1]:14600", "--listen") == ("::1", 14600)
    with pytest.raises(OptionError, match=r"--listen is '10\.0\.0\.7:x', expected HOST or HOST:PORT"):
        listening("10.0.0.7:x", "--listen")


def test_errors_of_the_command_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KV_MESSENGER_WEIGHTS_SECRET_FILE", raising=False)
    complaints: list[str] = []
    to = ["--to", "http://127.0.0.1:1"]
    away = parser().parse_args(["weights", "send", str(tmp_path), *to, "--listen", "10.0.0.7"])
    assert run(away, print, complaints.append) == 2
    assert "needs a weights_secret" in complaints.pop()
    empty = parser().parse_args(["weights", "send", str(tmp_path), *to])
    assert run(empty, print, complaints.append) == 1
    assert "expected a folder" in complaints.pop()
    status = parser().parse_args(["weights", "status", "http://127.0.0.1:1"])
    assert run(status, print, complaints.append) == 1
    assert "did not answer" in complaints.pop()


@pytest.mark.parametrize("given", ["nan", "inf", "-1", "1e9", "soon", ""])
def test_a_limit_that_no_clock_reaches_is_refused(capsys: pytest.CaptureFixture[str], given: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["weights", "send", "x", "--to", "http://127.0.0.1:1", f"--limit-seconds={given}"])
    assert "expected a number from 0 to 1000000" in capsys.readouterr().err


def test_should_leave_no_page_to_be_mapped_by_the_first_update() -> None:
    """Counted by the kernel: each page that a first write would have to map is a fault of this thread."""
    pages = 4096
    memory = SharedMemory(pages * mmap.PAGESIZE)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    ctypes.memset(memory.address, 1, memory.length_bytes)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < pages // 10
