"""A wrong set-up gives one clear sentence and a clean failure: no hang, no engine killed by a request."""

from __future__ import annotations

import re
import shutil
import socket
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bed import Bed, Messenger, Side, decode_leg, decoder, messenger, prefiller, send_decode, send_prefill, serial
from conftest import Reference
from make_model import TinyModel, cached_model
from prompts import cache_home, random_prompt
from server_process import LOOPBACK, complete, free_port, words_of
from workload import AFTER_FAILURES, ANSWER_TOKENS

ENDS_LIMIT_SECONDS = 600.0
LIMITS = {"fetch_limit_seconds": 60}
"""Bounds a test that fails. The limit for connecting is the default: a shorter one may end before a refusal comes."""
PROCESSOR = Path("/proc/cpuinfo").read_text(encoding="ascii").split()
FP8_PAGES_NEED = ("avx512f", "amx_tile")
"""One of these: without them vLLM's attention on x86 refuses fp8 pages at its start."""


def too_old_java(folder: Path) -> str:
    home = folder / "java-17"
    (home / "lib" / "server").mkdir(parents=True, exist_ok=True)
    (home / "lib" / "server" / "libjvm.so").write_bytes(b"")
    (home / "release").write_text('JAVA_VERSION="17.0.15"\n', encoding="utf-8")
    return str(home)


def wrong_starts(folder: Path, taken_port: int) -> dict[str, tuple[Side, str]]:
    """Sides that must refuse to start, each with what its log must say."""
    old = too_old_java(folder)
    return {
        "no JVM": (prefiller("no-jvm", extra={"java_home": "/nowhere/java"}), r"java_home.*/nowhere/java"),
        "JRE too old": (decoder("old-jre", extra={"java_home": old}), r"java_home.*17\.0\.15.*25"),
        "unknown option": (decoder("unknown-option", extra={"lisen_port": 1}), r"'lisen_port'.*'listen_port'"),
        "port in use": (
            prefiller("port-in-use", extra={"listen_port": taken_port}),
            rf"listen_port.*{taken_port}|{taken_port}.*listen_port",
        ),
    }


@pytest.fixture(scope="module")
def refused(model: Path, run_folder: Path) -> dict[str, tuple[Messenger, str]]:
    """All wrong starts, two at a time: each one ends by itself."""
    run_folder.mkdir(parents=True, exist_ok=True)
    made = {}
    with socket.socket() as taken, ExitStack() as stack:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        cases = list(wrong_starts(run_folder, taken.getsockname()[1]).items())
        while cases:
            now, cases = cases[:2], cases[2:]
            for case, (side, sentence) in now:
                made[case] = (messenger(side, model, run_folder), sentence)
                stack.callback(made[case][0].server.stop)
                made[case][0].server.start()
            for case, _ in now:
                made[case][0].server.wait_ended(ENDS_LIMIT_SECONDS)
    return made


@pytest.mark.parametrize("case", ["no JVM", "JRE too old", "unknown option", "port in use"])
def test_wrong_start_is_refused_with_a_sentence(refused: dict[str, tuple[Messenger, str]], case: str) -> None:
    side, sentence = refused[case]
    assert side.server.wait_ended(1) != 0
    assert re.search(sentence, side.server.log()), f"no such sentence in {side.server.log_path}: {sentence}"


def failed_cleanly(bed: Bed, decoder: Messenger, answer: Mapping[str, Any], sentence: str, seen: int) -> None:
    """The request failed, the decoder's new log lines say why, and both engines go on."""
    assert "choices" not in answer or answer["choices"][0]["finish_reason"] == "error", answer
    log = decoder.server.log()[seen:]
    assert re.search(sentence, log), f"no such sentence in {decoder.server.log_path}: {sentence}\n{log[-3000:]}"
    assert bed.prefiller.server.healthy()
    assert decoder.server.healthy()
    words_of(complete(decoder.server, random_prompt(3, 99), 1))
    decoder.wait_at_rest()


def test_unreachable_prefiller_fails_the_request_alone(bed: Bed, reference: Reference) -> None:
    prompt, then = AFTER_FAILURES.prompts()[:2]
    port = free_port()
    leg = {**decode_leg(bed.prefiller, "unreachable"), "remote_port": port}
    seen = len(bed.decoder.server.log())
    answer = send_decode(bed.decoder, prompt, 4, leg, "unreachable")
    failed_cleanly(bed, bed.decoder, answer, rf"{LOOPBACK}:{port}", seen)
    assert words_of(serial(bed.prefiller, bed.decoder, then, ANSWER_TOKENS)) == reference.to(then)


MALFORMED: Mapping[str, tuple[dict[str, Any], str]] = {
    "port is no number": ({"remote_port": "seven"}, "remote_port"),
    "port out of range": ({"remote_port": 70_000}, "remote_port"),
    "host is missing": ({"remote_host": None}, "remote_host"),
    "transfer id is a list": ({"transfer_id": ["a"]}, "transfer_id"),
}


@pytest.mark.parametrize("case", list(MALFORMED))
def test_malformed_parameters_fail_the_request_alone(bed: Bed, case: str) -> None:
    change, field = MALFORMED[case]
    request = f"malformed-{uuid.uuid4()}"
    seen = len(bed.decoder.server.log())
    prompt = AFTER_FAILURES.prompts()[2 + list(MALFORMED).index(case)]
    answer = send_decode(bed.decoder, prompt, 4, {**decode_leg(bed.prefiller, request), **change}, request)
    failed_cleanly(bed, bed.decoder, answer, field, seen)


def other_model() -> Path:
    return cached_model(cache_home(), TinyModel(layer_count=3))


def other_weights(run_folder: Path) -> Path:
    """Another training under the same name: an earlier one that was left at the same path on one of the hosts."""
    trained, other = cached_model(cache_home()), cached_model(cache_home(), TinyModel(seed=21))
    made = run_folder / "other-weights" / trained.name
    shutil.copytree(trained, made)
    shutil.copy(other / "model.safetensors", made)
    return made


def misfits(run_folder: Path) -> dict[str, tuple[Side, str]]:
    """Decoders that do not fit the prefiller, each with what must be said."""
    return {
        "secret": (decoder("other-secret", extra={**LIMITS, "shared_secret": "not the same"}), "shared_secret differs"),
        "dtype": (
            decoder("other-dtype", extra=LIMITS, options={"dtype": "bfloat16"}),
            differ("model_config.dtype", "bfloat16"),
        ),
        "setting": (
            decoder(
                "other-setting", extra=LIMITS, options={"arguments": ("--hf-overrides", '{"rms_norm_eps": 0.001}')}
            ),
            differ("rms_norm_eps", r"0\.001: start both with the same, or name it in settings_may_differ"),
        ),
        "page size": (
            decoder("other-page-size", extra=LIMITS, options={"page_tokens": 64}),
            differ("pageTokens", "64"),
        ),
        "model": (
            decoder("other-model", extra=LIMITS, options={"model": other_model()}),
            differ("model", "tiny-llama"),
        ),
        "weights": (
            decoder("other-weights", extra=LIMITS, options={"model": other_weights(run_folder)}),
            differ("weights digest", r"[0-9a-f]{16}: start both with the same model's files"),
        ),
    }


def differ(field: str, value: str) -> str:
    return rf"the prefiller's {field} is \S+, the decoder's is {value}"


@pytest.mark.parametrize(
    "together", [("secret", "dtype", "setting"), ("page size", "model", "weights")], ids=" and ".join
)
def test_misfitting_decoder_is_refused_with_the_field_named(
    bed: Bed, reference: Reference, stack: ExitStack, run_folder: Path, together: tuple[str, ...]
) -> None:
    made = misfits(run_folder / together[0])
    cases = [made[name] for name in together]
    started = bed.started(stack, *(side for side, _ in cases))
    prompts = iter(AFTER_FAILURES.prompts()[6 + 4 * (together[0] != "secret") :])
    for misfit, (_, sentence) in zip(started, cases, strict=True):
        request = f"misfit-{uuid.uuid4()}"
        seen = len(misfit.server.log())
        prompt = next(prompts)
        answer = send_decode(misfit, prompt, 4, decode_leg(bed.prefiller, request), request)
        failed_cleanly(bed, misfit, answer, sentence, seen)
    fits = next(prompts)
    assert words_of(serial(bed.prefiller, bed.decoder, fits, ANSWER_TOKENS)) == reference.to(fits)


@pytest.mark.skipif(
    not any(flag in PROCESSOR for flag in FP8_PAGES_NEED),
    reason="vLLM has no fp8 pages on a CPU without AVX-512 or AMX",
)
def test_one_byte_numbers_of_another_format_are_refused(bed: Bed, stack: ExitStack) -> None:
    """Their pages are of one size, and every byte is a number in either format: another one."""
    source, target = bed.started(
        stack,
        prefiller("prefiller-e4m3", options={"arguments": ("--kv-cache-dtype", "fp8_e4m3")}),
        decoder("decoder-e5m2", extra=LIMITS, options={"arguments": ("--kv-cache-dtype", "fp8_e5m2")}),
    )
    request = f"misfit-{uuid.uuid4()}"
    seen = len(target.server.log())
    answer = send_decode(target, random_prompt(200, 97), 4, decode_leg(source, request), request)
    sentence = "the prefiller's dtype is fp8_e4m3, the decoder's is fp8_e5m2"
    failed_cleanly(replace(bed, prefiller=source), target, answer, sentence, seen)


def test_prefill_that_nobody_fetches_is_released(model: Path, bed: Bed, stack: ExitStack) -> None:
    """A finished prefill waits for its grant no longer than the option says, then its pages are free."""
    (lonely,) = bed.started(stack, prefiller("prefiller-lonely", extra={"grant_wait_seconds": 2}))
    answer = send_prefill(lonely, random_prompt(200, 98), f"lonely-{uuid.uuid4()}")
    assert answer["kv_transfer_params"]["transfer_mode"] == "push"
    lonely.wait_at_rest()
    assert lonely.metric("kv_messenger_prefills_expired_total") == 1
