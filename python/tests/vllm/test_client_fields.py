"""A fuzz of every field that a client gives: each request ends, no engine does, and no other request is harmed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from conftest import EngineMaker
from odd_values import odd_values
from simulated_engine import SimulatedEngine, remote_decode, remote_prefill

from kv_connector.vllm.pull_params import read_carrier, read_pull
from kv_connector.vllm.transfer_params import Refused, Side, read, rejected_transfers

FIELDS = [
    *("do_remote_prefill", "do_remote_decode", "transfer_mode", "transfer_id", "remote_request_id", "remote_host"),
    *("remote_port", "remote_engine_id", "remote_block_ids", "prefiller", "tp_size", "pp_size"),
    *("of_data_parallel_rank", "of_choice", "unknown", "remote_prompt_tokens", "remote_kv_source"),
    *("remote_prompt_digest", "asked_by_transfer", "asked_digest"),
]
COMMAND_LENGTH_MAX_BYTES = 64 << 10
"""Of the addresses of 1,024 messengers."""
LINE_LENGTH_MAX = 2000
SOUND = "sound-00000000"


class Noting(dict[str, Any]):
    """Parameters that note which of their fields are asked for."""

    def __init__(self, held: Mapping[str, Any], noted: set[str]) -> None:
        super().__init__(held)
        self._noted = noted

    def get(self, name: str, default: Any = None) -> Any:
        self._noted.add(name)
        return super().get(name, default)


def end_all(engine: SimulatedEngine) -> None:
    """The messenger ends whatever it was asked for, and the engine its requests."""
    for _ in range(8):
        for request, kind in engine.messenger.owes().items():
            if kind == "fetch":
                engine.messenger.arrive(request)
            else:
                engine.messenger.release(request)
        engine.step()


def check(engine: SimulatedEngine, caplog: pytest.LogCaptureFixture, what: object) -> None:
    assert engine.at_rest(), what
    assert engine.ended[SOUND].name == "FINISHED_LENGTH_CAPPED", what
    for command in engine.messenger.raw:
        assert len(json.dumps(command)) <= COMMAND_LENGTH_MAX_BYTES, what
    for record in caplog.records:
        message = record.getMessage()
        assert len(message) <= LINE_LENGTH_MAX
        assert message.isprintable(), message
        assert not record.exc_info, what


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kv_role", ["kv_producer", "kv_consumer"])
def test_should_end_each_request_whatever_its_parameters_hold(
    engine: EngineMaker, kv_role: str, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = engine(kv_role, block_count=1024)
    params = remote_decode() if kv_role == "kv_producer" else remote_prefill()
    values = odd_values(FIELDS.index(field))
    with caplog.at_level("INFO"):
        made.add(SOUND, 100, dict(params))
        for index, value in enumerate(values):
            made.add(f"odd-{index}-00000000", 100, {**params, field: value})
            made.step()
        made.add_ended("odd-ended-00000000", {**params, field: values[0]})
        made.steps(len(values))
        end_all(made)
    assert len(made.ended) == len(values) + 2
    check(made, caplog, field)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kv_role", ["kv_producer", "kv_consumer", "kv_both"])
def test_should_end_each_request_whatever_its_parameters_are_together(
    engine: EngineMaker, kv_role: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    made = engine(kv_role, block_count=1024)
    randoms, values = random.Random(seed), odd_values(seed)
    base = {"kv_producer": remote_decode, "kv_consumer": remote_prefill}.get(kv_role, remote_decode)
    with caplog.at_level("INFO"):
        made.add(SOUND, 100, base())
        for index in range(100):
            odd = {field: randoms.choice(values) for field in randoms.sample(FIELDS, 3)}
            params = odd if randoms.random() < 0.2 else {**randoms.choice([remote_decode, remote_prefill])(), **odd}
            made.add(f"odd-{index}-00000000", 100, randoms.choice([params, params, params, randoms.choice(values)]))
            made.step()
        made.steps(100)
        end_all(made)
    check(made, caplog, seed)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("cache_salt", salt) for salt in ("x" * 1025, "é" * 2000, "a\nb", "a\0", "half \ud83d", "x" * 1_000_000)),
        *(("priority", priority) for priority in (1 << 31, -(1 << 31), 1 << 64)),
    ],
)
def test_should_refuse_what_no_prefiller_can_be_asked_to_enqueue(
    engine: EngineMaker, field: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A frame that breaks a rule would end the session, and with it the requests of others."""
    decoder = engine("kv_consumer")
    decoder.add("odd-00000000", 100, {"do_remote_prefill": True, "prefiller": "host:1"})
    setattr(decoder.requests["odd-00000000"], field, value)
    decoder.add(SOUND, 100, remote_prefill())
    decoder.steps(3)
    assert decoder.ended["odd-00000000"].name == "FINISHED_ERROR"
    assert f"{field} is " in caplog.text
    assert len(decoder.messenger.of_kind("fetch")) == 1
    end_all(decoder)
    check(decoder, caplog, field)


def test_should_say_what_is_wrong_in_one_short_sentence() -> None:
    side = Side("both", 1, 1, 1)
    for field in FIELDS:
        for value in odd_values(1):
            for params in ({**remote_prefill(), field: value}, {**remote_decode(), field: value}, value):
                ask = read(params, "r-00000000", side)
                if isinstance(ask, Refused):
                    assert len(ask.reason) < 500
                    assert ask.reason.isprintable()


def test_should_try_odd_values_in_each_field_that_is_read() -> None:
    """A field that comes later is fuzzed too, or fails here."""
    noted = set[str]()
    lists = {"remote_host": "h:1,h:2", "prefiller": "h:1", "transfer_id": "t", "of_choice": 1}
    for role in ("both", "prefiller", "decoder"):
        for base in (remote_decode(), remote_prefill()):
            for odd in ({}, *({name: value} for name, value in lists.items())):
                params = Noting({**base, **odd}, noted)
                read(params, "r-00000000", Side(role, 1, 1, 1))
                read_pull(params)
                read_carrier(params)
                rejected_transfers(params, "r-00000000")
    assert noted <= set(FIELDS)
    assert noted >= {"remote_prompt_digest", "asked_digest", "prefiller", "remote_kv_source", "remote_request_id"}
