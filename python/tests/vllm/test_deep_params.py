"""No request ends an engine by how deep its client's parameters are nested: vLLM sends them to workers by pickle."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import remote_decode, remote_prefill

from kv_connector.vllm.deep_params import LEVELS_MAX, kept_from_workers

FIELDS = ("unknown", "remote_block_ids", "transfer_id", "prefiller", "do_remote_prefill")


def nested(levels: int, kind: str) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind == "list" else {"a": value}
    return value


def request_of(params: Any) -> Any:
    sampling = SimpleNamespace(extra_args={"kv_transfer_params": params, "other": 1}, max_tokens=7)
    return SimpleNamespace(request_id="deep-00000000", sampling_params=sampling, kv_transfer_params=params)


@pytest.mark.parametrize("kind", ["list", "object"])
@pytest.mark.parametrize("levels", [LEVELS_MAX, 300, 900, 5_000])
def test_should_let_vllm_send_a_request_to_its_workers_however_deep_its_parameters_are(levels: int, kind: str) -> None:
    request = request_of({"unknown": nested(levels, kind)})
    given = request.sampling_params
    assert kept_from_workers(request)
    assert pickle.loads(pickle.dumps(request.sampling_params)).extra_args == {"other": 1}
    assert request.sampling_params.max_tokens == 7
    assert "kv_transfer_params" in given.extra_args, "a caller's own object"


@pytest.mark.parametrize("params", [None, {}, remote_decode(), remote_prefill(), {"wide": [[1]] * 1000}])
def test_should_leave_a_request_with_ordinary_parameters_as_it_is(params: Any) -> None:
    request = request_of(params)
    given = request.sampling_params
    assert not kept_from_workers(request)
    assert request.sampling_params is given
    assert not kept_from_workers(SimpleNamespace(sampling_params=None))


@pytest.mark.parametrize("kv_role", ["kv_producer", "kv_consumer"])
@pytest.mark.parametrize("field", FIELDS)
def test_should_look_at_each_request_that_is_queued(engine: EngineMaker, kv_role: str, field: str) -> None:
    made = engine(kv_role, block_count=1024)
    params = remote_decode() if kv_role == "kv_producer" else remote_prefill()
    request = request_of({**params, field: nested(900, "object")})
    made.scheduler.on_new_request(request)
    assert request.sampling_params.extra_args == {"other": 1}
