"""The stand-in for RDMA devices: two processes on it, and what each of them sees (verbs_story.c)."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable

import pytest

from uncomputed.pair import environment, has_rdma_devices, stand_ins

LIMIT_SECONDS = 600.0
ANSWERS = "answers"

Story = Callable[[str], list[str]]


@pytest.fixture(params=["", "target", "writer", ANSWERS], ids=lambda late: f"late-{late}" if late else "both-at-once")
def seen(request: pytest.FixtureRequest) -> Story:
    """What each of the two says in a story, in its order, at whatever pace the two and their devices go."""
    folder = stand_ins()
    if not has_rdma_devices(folder):
        pytest.skip("no stand-in for RDMA devices: examples/setup/find-libfabric has no headers of libibverbs")

    late = {"UNCOMPUTED_ANSWERS_LATE_US": "30000"} if request.param == ANSWERS else {}

    def lines_of(story: str) -> list[str]:
        done = subprocess.run(
            [folder / "verbs_story", story, *([request.param] if request.param != ANSWERS else [])],
            env={**os.environ, **environment(folder), **late, "LD_LIBRARY_PATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return sorted(done.stdout.splitlines(), key=lambda line: line.partition(":")[0])

    return lines_of


def test_a_write_lands_and_its_immediate_waits_for_a_receive(seen: Story) -> None:
    assert seen("host") == [
        "target: 0 before",
        "target: success, id 100, imm 1",
        "target: success, id 100, imm 2",
        "target: 9",
        "writer: success, id 1, imm 0",
        "writer: success, id 2, imm 0",
    ]


def test_memory_of_a_device_is_reached_by_a_dma_buf_alone_and_seen_behind_a_flush(seen: Story) -> None:
    assert seen("device") == [
        f"as the host's: {errno.EFAULT}",
        "target: success, id 100, imm 1",
        "target: 0 before the flush",
        "target: 9",
        "writer: success, id 1, imm 0",
    ]


@pytest.mark.parametrize("story", ["wrong-key", "beyond"])
def test_a_key_is_good_for_its_range_only(seen: Story, story: str) -> None:
    lines = seen(story)
    assert lines[:3] == [
        "target: Work Request Flushed Error, id 100, imm 0",
        "target: 0",
        "writer: remote access error, id 1, imm 0",
    ]


def test_requests_to_a_process_that_is_gone_fail(seen: Story) -> None:
    assert seen("killed") == [
        "writer: transport retry counter exceeded, id 1, imm 0",
        "writer: Work Request Flushed Error, id 2, imm 0",
    ]


def test_a_pair_takes_nothing_of_a_pair_that_it_was_not_connected_with(seen: Story) -> None:
    assert seen("not-connected") == ["writer: transport retry counter exceeded, id 1, imm 0"]


def test_a_pair_keeps_to_its_states_and_its_depth(seen: Story) -> None:
    assert seen("strict") == [
        "all flushed",
        f"connected first: {errno.EINVAL}",
        f"initialised twice: {errno.EINVAL}",
        f"one receive more: {errno.ENOMEM}",
        f"sends first: {errno.EINVAL}",
        "stopped: 0",
    ]
