from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import release
import vllm_sources
from gpu_prefiller import GpuPrefiller, the_device
from simulated_engine import SimulatedEngine

EngineMaker = Callable[..., SimulatedEngine]


@pytest.fixture(scope="module", params=list(vllm_sources.RELEASES))
def vllm_release(request: pytest.FixtureRequest) -> Iterator[release.Release]:
    try:
        with release.loaded(request.param) as found:
            yield found
    except vllm_sources.SourcesUnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def engine(vllm_release: release.Release) -> EngineMaker:
    def make(kv_role: str, **more: Any) -> SimulatedEngine:
        return SimulatedEngine(vllm_release, kv_role, **more)

    return make


@pytest.fixture
def prefiller(vllm_release: release.Release) -> Iterator[GpuPrefiller]:
    made = GpuPrefiller(vllm_release, the_device())
    yield made
    made.close()
    assert the_device().stand_in.standInHeld() == 0
