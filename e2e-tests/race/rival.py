"""Measures another library's writes as kvperf measures ours: this process writes pages into one that it starts.

    rival.py nixl|mooncake --transport shm|tcp [--op paged|pingpong] --page-bytes N --page-count N --batch-pages N …
        [--host ADDRESS --target-host ADDRESS --device NAME --target-prefix WORDS]   where the target is on another host

For each empty line of standard input it moves a round and prints its duration and CPU time in ns, like kvperf's
--turns. The pages of a round are selected at random from pools on both sides, and the first round is compared byte by
byte. What can be prepared before a round (lists of descriptors, handles) is not timed.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

LOOPBACK = "127.0.0.1"
READY = "ready"
MOONCAKE_WRITES_MAX = 1024
"""The limit of writes in flight: its queue has room for 2048 per lane, and a batch that does not fit fails."""


@dataclass(frozen=True)
class Shape:
    """The data of a round, and the address of this side."""

    host: str
    transport: str
    op: str
    page_bytes: int
    page_count: int
    batch_pages: int
    pool_bytes: int
    in_flight: int

    @property
    def pool_pages(self) -> int:
        return self.pool_bytes // self.page_bytes


@dataclass(frozen=True)
class Batch:
    """Pages of one request, by their indices in the pools."""

    sources: Sequence[int]
    targets: Sequence[int]


class Pool:
    """Memory from which pages are selected; every page is touched before it is used."""

    def __init__(self, length_bytes: int, fill: int) -> None:
        self.memory = mmap.mmap(-1, length_bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        ctypes.memset(self.address, fill, length_bytes)

    def page(self, index: int, page_bytes: int) -> bytes:
        return self.memory[index * page_bytes : (index + 1) * page_bytes]


class Library(Protocol):
    """One side of a transfer with another library."""

    def hello(self) -> str:
        """The information that the other side needs, on one line."""

    def meet(self, hello: str) -> None:
        """Takes the other side's line."""

    def prepare(self, number: int, batches: Sequence[Batch]) -> Sequence[Any]:
        """Prepares a round, before its time is measured."""

    def write(self, prepared: Sequence[Any], in_flight: int) -> None:
        """Writes a round; returns when the sources are free, or when the library reports it as written."""

    def await_arrivals(self, number: int, count: int) -> int:
        """At the target: the time in ns at which ``count`` batches had arrived; 0 if the library does not report it."""


class Nixl:
    """NIXL with its UCX backend: each batch is a transfer with a notification, which the target counts."""

    def __init__(self, name: str, shape: Shape, pool: Pool) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        # On few cores it is fastest without its progress threads: with them it had half the speed on two cores.
        self._agent = nixl_agent(name, nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
        self._name, self._shape, self._pool = name, shape, pool
        self._agent.register_memory([(pool.address, shape.pool_bytes, 0, "")], "DRAM")
        self._peer = ""
        self._local: Any = None
        self._remote: Any = None
        self._seen = 0

    def hello(self) -> str:
        return f"{self._pool.address} {self._agent.get_agent_metadata().hex()}"

    def meet(self, hello: str) -> None:
        address, metadata = hello.split()
        self._peer = self._agent.add_remote_agent(bytes.fromhex(metadata))
        self._peer = self._peer.decode() if isinstance(self._peer, bytes) else self._peer
        self._local = self._agent.prep_xfer_dlist("NIXL_INIT_AGENT", self._pages(self._pool.address), "DRAM")
        self._remote = self._agent.prep_xfer_dlist(self._peer, self._pages(int(address)), "DRAM")

    def _pages(self, address: int) -> list[tuple[int, int, int]]:
        size = self._shape.page_bytes
        return [(address + page * size, size, 0) for page in range(self._shape.pool_pages)]

    def prepare(self, number: int, batches: Sequence[Batch]) -> Sequence[Any]:
        return [
            self._agent.make_prepped_xfer(
                "WRITE",
                self._local,
                list(batch.sources),
                self._remote,
                list(batch.targets),
                b"%d" % number,
            )
            for batch in batches
        ]

    def write(self, prepared: Sequence[Any], in_flight: int) -> None:
        waiting = list(reversed(prepared))
        open_handles: list[Any] = []
        while waiting or open_handles:
            while waiting and len(open_handles) < in_flight:
                handle = waiting.pop()
                if self._agent.transfer(handle) == "ERR":
                    raise SystemExit("rival: NIXL refused a transfer")
                open_handles.append(handle)
            open_handles = [handle for handle in open_handles if self._goes_on(handle)]
        for handle in prepared:
            self._agent.release_xfer_handle(handle)

    def _goes_on(self, handle: Any) -> bool:
        state = self._agent.check_xfer_state(handle)
        if state == "ERR":
            raise SystemExit("rival: a transfer of NIXL failed")
        return bool(state != "DONE")

    def await_arrivals(self, number: int, count: int) -> int:
        while self._seen < count:
            self._seen += sum(len(messages) for messages in self._agent.get_new_notifs().values())
        self._seen = 0
        return time.monotonic_ns()


class Mooncake:
    """Mooncake's engine over tcp; it does not notify a target, so a round ends when the writer's calls return."""

    def __init__(self, name: str, shape: Shape, pool: Pool) -> None:
        from mooncake.engine import TransferEngine

        self._engine = TransferEngine()
        if self._engine.initialize(shape.host, "P2PHANDSHAKE", "tcp", "") != 0:
            raise SystemExit("rival: Mooncake's engine does not start")
        self._shape, self._pool = shape, pool
        self._engine.register_memory(pool.address, shape.pool_bytes)
        self._peer, self._peer_address = name, 0

    def hello(self) -> str:
        return f"{self._shape.host}:{self._engine.get_rpc_port()} {self._pool.address}"

    def meet(self, hello: str) -> None:
        self._peer, address = hello.split()
        self._peer_address = int(address)

    def prepare(self, number: int, batches: Sequence[Batch]) -> Sequence[Any]:
        size = self._shape.page_bytes
        return [
            (
                [self._pool.address + page * size for page in batch.sources],
                [self._peer_address + page * size for page in batch.targets],
                [size] * len(batch.sources),
            )
            for batch in batches
        ]

    def write(self, prepared: Sequence[Any], in_flight: int) -> None:
        waiting = list(reversed(prepared))
        under_way: list[int] = []
        fitting = max(1, min(in_flight, MOONCAKE_WRITES_MAX // self._shape.batch_pages))
        while waiting or under_way:
            while waiting and len(under_way) < fitting:
                batch = self._engine.batch_transfer_async_write(self._peer, *waiting.pop())
                if batch == 0:
                    raise SystemExit("rival: Mooncake refused a batch")
                under_way.append(batch)
            # Waits for this one while the others are in flight too.
            if self._engine.get_batch_transfer_status([under_way.pop(0)]) != 0:
                raise SystemExit("rival: a batch of Mooncake failed")

    def await_arrivals(self, number: int, count: int) -> int:
        return 0


LIBRARIES: Mapping[str, Callable[[str, Shape, Pool], Library]] = {"nixl": Nixl, "mooncake": Mooncake}


def batches_of(shape: Shape, draw: random.Random) -> Iterator[Batch]:
    sources, targets = (draw.sample(range(shape.pool_pages), shape.page_count) for _ in range(2))
    for first in range(0, shape.page_count, shape.batch_pages):
        end = first + shape.batch_pages
        yield Batch(sources[first:end], targets[first:end])


def target(library: Library, pool: Pool, shape: Shape) -> None:
    """Answers the lines of the writing side, until its end."""
    print(library.hello(), flush=True)
    library.meet(sys.stdin.readline())
    for line in sys.stdin:
        what, *numbers = line.split()
        if what == "page":
            print(pool.page(int(numbers[0]), shape.page_bytes).hex(), flush=True)
        elif what == "ping":
            cpu = time.process_time_ns()
            for index in range(int(numbers[0])):
                prepared = library.prepare(index, [Batch([index], [index])])
                library.await_arrivals(index, 1)
                library.write(prepared, 1)
            print(time.monotonic_ns(), time.process_time_ns() - cpu, flush=True)
        else:
            number, count = (int(each) for each in numbers)
            cpu = time.process_time_ns()
            print(
                library.await_arrivals(number, count),
                time.process_time_ns() - cpu,
                flush=True,
            )


class Writer:
    """The measuring side."""

    def __init__(self, library: Library, pool: Pool, shape: Shape, other: subprocess.Popen[str]) -> None:
        self._library, self._pool, self._shape, self._other = (
            library,
            pool,
            shape,
            other,
        )
        self._draw = random.Random(1)
        self._number = 0
        hello = self._line()
        self._say(library.hello())
        library.meet(hello)

    def _say(self, line: str) -> None:
        assert self._other.stdin is not None
        self._other.stdin.write(line + "\n")
        self._other.stdin.flush()

    def _line(self) -> str:
        assert self._other.stdout is not None
        line = self._other.stdout.readline()
        if not line:
            raise SystemExit("rival: the target has ended")
        return line

    def round(self) -> tuple[int, int]:
        """(ns from the first post until the target had seen all of it, CPU time of both processes in ns)"""
        return self._pings() if self._shape.op == "pingpong" else self._pages()

    def _pages(self) -> tuple[int, int]:
        self._number += 1
        batches = list(batches_of(self._shape, self._draw))
        prepared = self._library.prepare(self._number, batches)
        self._say(f"round {self._number} {len(batches)}")
        cpu, begun = time.process_time_ns(), time.monotonic_ns()
        self._library.write(prepared, self._shape.in_flight)
        written = time.monotonic_ns()
        cpu = time.process_time_ns() - cpu
        seen, others_cpu = (int(each) for each in self._line().split())
        return (seen or written) - begun, cpu + others_cpu

    def _pings(self) -> tuple[int, int]:
        count = self._shape.page_count
        self._say(f"ping {count}")
        cpu, took = time.process_time_ns(), 0
        for index in range(count):
            prepared = self._library.prepare(index, [Batch([index], [index])])
            begun = time.monotonic_ns()
            self._library.write(prepared, 1)
            self._library.await_arrivals(index, 1)
            took += time.monotonic_ns() - begun
        others_cpu = int(self._line().split()[1])
        return took, time.process_time_ns() - cpu + others_cpu

    def compare(self) -> None:
        """Moves a round with pages that contain their origin, and compares each with its source."""
        size, shape = self._shape.page_bytes, self._shape
        for page in range(shape.pool_pages):
            self._pool.memory[page * size : page * size + 8] = page.to_bytes(8, "little")
        batches = list(batches_of(shape, self._draw))
        prepared = self._library.prepare(0, batches)
        self._say(f"round 0 {len(batches)}")
        self._library.write(prepared, shape.in_flight)
        self._line()
        for batch in batches:
            for source, written in zip(batch.sources, batch.targets, strict=True):
                self._say(f"page {written}")
                if bytes.fromhex(self._line()) != self._pool.page(source, size):
                    raise SystemExit(f"rival: page {written} is not page {source}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--transport", default="shm", choices=["shm", "tcp"])
    parser.add_argument("--op", default="paged", choices=["paged", "pingpong"])
    for name, default in (
        ("page-bytes", 65536),
        ("page-count", 256),
        ("batch-pages", 16),
        ("pool-bytes", 512 << 20),
        ("in-flight", 16),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--target", action="store_true")
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--target-host", default=LOOPBACK)
    parser.add_argument("--device", default="lo", help="the network interface, by the name that it has on both sides")
    parser.add_argument("--target-prefix", default="", help='the target is started by, as "ip netns exec NAME"')
    given = parser.parse_args()
    if given.target:
        given.host = given.target_host
    os.environ.setdefault("UCX_TLS", "tcp,shm,self" if given.transport == "shm" else "tcp,self")  # shm alone: no start
    os.environ.setdefault("UCX_NET_DEVICES", given.device)
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    fields = {name: getattr(given, name) for name in Shape.__dataclass_fields__}
    shape = Shape(**fields)
    pool = Pool(shape.pool_bytes, 0 if given.target else 7)
    out = os.dup(1)
    os.dup2(2, 1)  # the libraries print to standard output too
    library = LIBRARIES[given.library]("target" if given.target else "writer", shape, pool)
    os.dup2(out, 1)
    if given.target:
        target(library, pool, shape)
        return
    own = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--target"]
    command = [*given.target_prefix.split(), *own]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        writer = Writer(library, pool, shape, other)
        if shape.op == "paged":
            writer.compare()
        for _ in range(3):
            writer.round()
        print(READY, flush=True)
        for _ in sys.stdin:
            print(*writer.round(), flush=True)
        assert other.stdin is not None
        other.stdin.close()


if __name__ == "__main__":
    main()
