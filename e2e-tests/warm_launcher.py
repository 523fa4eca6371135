"""Forks engine servers from one process that has imported the engine. For the test bed only: users start `python -m`.

A server of vLLM or SGLang is three processes or more, and each imports some 6,000 modules, which is most of what a
start costs. Here a server is a fork of this process, and has a nursery: a fork of itself, made before it does anything,
that forks what the engine would spawn (the engine core, the workers, the schedulers). Each of them begins with nothing
but the imports, as a spawned process does: no thread, no socket and no JVM exists yet in what is forked, and both forks
assert the first of it.

Arguments: the control socket's descriptor, then the modules to import. Runs in one thread. A request is a packet on
the control socket with two descriptors: the server's log, and a socket on which this process says the server's id and,
when it has ended, its status. The control socket's end ends this process and all servers that still run.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker, spawn
from typing import Any

REQUEST_BYTES_MAX = 1 << 18
READY = b"ready"
YIELD_SECONDS = 0.0005
"""Far below a step of an engine on a CPU."""


@dataclass(frozen=True)
class Request:
    """A server to be: `python -m module arguments…` with this environment."""

    module: str
    arguments: list[str]
    environment: Mapping[str, str]
    network: str
    """The network namespace that it is to run in; "" is this one."""
    log: int
    """Its descriptor; the server's output goes there."""


def main() -> None:
    descriptor, *preloaded = sys.argv[1:]
    control = socket.socket(fileno=int(descriptor))
    sys.path[0] = os.getcwd()  # as `python -m` has it; this file's folder is nothing for a server to import from
    for name in preloaded:
        importlib.import_module(name)
    titles = sys.modules.get("setproctitle")
    if titles is not None:
        titles.getproctitle()  # it looks now for the room that titles have
    assert "kv_connector" not in sys.modules, "what is tested must be imported by the server that it is tested in"
    sleep_instead_of_yielding()
    know_bindings()
    gc.collect()
    gc.freeze()  # pages of objects that nothing collects stay shared with the forks
    control.send(READY)
    request = Launcher(control).serve()
    if request is not None:
        become_server(request)


def sleep_instead_of_yielding() -> None:
    """vLLM's processes wait for each other in loops that yield, which on two cores keep other threads from running."""
    known = sys.modules.get("vllm.distributed.utils")
    yielding = getattr(known, "sched_yield", None)
    if yielding is None:
        return
    for module in list(sys.modules.values()):
        if getattr(module, "sched_yield", None) is yielding:
            module.__dict__["sched_yield"] = lambda: time.sleep(YIELD_SECONDS)


def know_bindings() -> None:
    """SGLang looks in every module for each object that a plug-in hooks. A fork would copy nearly all that it shares.

    Looking at a value writes to its count of references. So it is noted here, before any fork, where callables are.
    """
    hooks: Any = sys.modules.get("sglang.srt.plugins.hook_registry")
    if hooks is None:
        return
    assert hasattr(hooks, "_propagate_patch"), "SGLang has another way to find what a hooked object is bound to"
    known = {id(module) for module in sys.modules.values()}
    bound: dict[int, list[tuple[Any, str]]] = {}
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType):
            for name, value in list(vars(module).items()):
                if callable(value):
                    bound.setdefault(id(value), []).append((module, name))

    def propagate(original: object, wrapped: object, source: object) -> int:
        later = [each for each in list(sys.modules.values()) if id(each) not in known]
        of_later = [(each, name) for each in later if isinstance(each, types.ModuleType) for name in vars(each)]
        stale = [
            (module, name)
            for module, name in (*bound.get(id(original), ()), *of_later)
            if module is not source and vars(module).get(name) is original
        ]
        for module, name in stale:
            setattr(module, name, wrapped)
        bound[id(wrapped)] = bound.get(id(original), [])
        return len(stale)

    hooks._propagate_patch = propagate


class Launcher:
    """Forks servers, and says how they ended."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._answer_sockets: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._ended, wake = os.pipe()
        os.set_blocking(self._ended, False)
        os.set_blocking(wake, False)
        self._wake = wake

    def serve(self) -> Request | None:
        """Returns in each forked server with its request, and here with None when the tests are over."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler the wake-up descriptor is written to
        signal.set_wakeup_fd(self._wake)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._ended, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in self._selector.select()}
            if self._ended in ready:
                os.read(self._ended, REQUEST_BYTES_MAX)
                self._say_ends()
            if self._control in ready:
                packet, descriptors, _, _ = socket.recv_fds(self._control, REQUEST_BYTES_MAX, 2)
                if not packet:
                    self._end_forks()
                    return None
                request = self._fork(json.loads(packet), *descriptors)
                if request is not None:
                    return request

    def _fork(self, asked: dict[str, Any], log: int, status: int) -> Request | None:
        to = socket.socket(fileno=status)
        assert_single_thread()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self._forget(to)
            return Request(log=log, **asked)
        os.close(log)
        self._answer_sockets[pid] = to
        say(to, {"pid": pid})
        return None

    def _forget(self, mine: socket.socket) -> None:
        """In a fork: nothing of the launcher is kept."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for what in (signal.SIGCHLD, signal.SIGQUIT):  # a run in the background of a shell begins with SIGQUIT ignored
            signal.signal(what, signal.SIG_DFL)
        self._selector.close()
        for other in (mine, self._control, *self._answer_sockets.values()):
            other.close()
        os.close(self._ended)
        os.close(self._wake)

    def _end_forks(self) -> None:
        """The run is over, however it ended: a server that it could not stop any more would go on for ever.

        None of these ids has been waited for, so none is another process's by now.
        """
        for pid in self._answer_sockets:
            for target in (-pid, pid):  # a fork that has no group of its own yet is ended by its id
                with contextlib.suppress(ProcessLookupError):
                    os.kill(target, signal.SIGKILL)

    def _say_ends(self) -> None:
        for pid in list(self._answer_sockets):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with self._answer_sockets.pop(pid) as to:
                    say(to, {"status": os.waitstatus_to_exitcode(status)})


def say(to: socket.socket, what: Mapping[str, int]) -> None:
    with contextlib.suppress(
        BrokenPipeError, ConnectionResetError
    ):  # what asked is over, perhaps before it heard of the id
        to.send(json.dumps(what).encode())


def assert_single_thread() -> None:
    """A fork has the forking thread alone: what others held would stay held for ever."""
    tasks = os.listdir("/proc/self/task")
    assert len(tasks) == 1, f"{len(tasks)} threads, expected one: {[t.name for t in threading.enumerate()]}"


def become_server(request: Request) -> None:
    """What `python -m` does, in the log and the environment that were asked for."""
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for output in (1, 2):
        os.dup2(request.log, output)
    os.close(request.log)
    draw_anew()
    be_in(request.environment)
    if request.network:
        enter(request.network)
    sys.argv = [request.module, *request.arguments]
    start_nursery()
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


def draw_anew() -> None:
    """Gives this fork random numbers of its own. Engines draw ports and seeds; NumPy's state is copied by a fork."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def enter(network: str) -> None:
    """What `ip netns exec` does for a network's sake. This thread is the only one, and what it forks is there too."""
    library = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{network}", "rb") as namespace:
        if library.setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {network}")


def be_in(environment: Mapping[str, str]) -> None:
    """From here on. Python and OpenMP read their variables when they began, long before these were known."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # looked for again: what is imported may have asked for it
    named = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [
        folder for folder in named if folder and folder not in sys.path
    ]  # before what is installed, as Python has it
    torch = sys.modules.get("torch")
    if torch is not None and "OMP_NUM_THREADS" in environment:
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if "GOMP_CPU_AFFINITY" in environment:
        os.sched_setaffinity(0, {int(core) for core in environment["GOMP_CPU_AFFINITY"].split()})


def start_nursery() -> None:
    """From here on what this server and its processes "spawn" is forked from a copy of it as it is now.

    The standard library's fork server does the work; it is only given a process that has the imports already, and each
    new process is told the environment of the one that wants it, as a spawned one is.
    """
    resource_tracker.ensure_running()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0kv-messenger-nursery-{os.getpid()}")
    listener.listen()
    alive, hold = os.pipe()
    keeper: Any = forkserver._forkserver
    keeper._forkserver_address = listener.getsockname()
    keeper._forkserver_alive_fd = hold
    keeper.ensure_running = resource_tracker.ensure_running
    contexts = importlib.import_module("multiprocessing.context").__dict__["_concrete_contexts"]
    contexts["spawn"] = contexts["forkserver"]
    send_environment()
    assert_single_thread()
    if os.fork() == 0:
        os.close(hold)
        hand_quit_on()
        try:
            forkserver.main(listener.detach(), alive, ())
        finally:
            os._exit(0)
    os.close(alive)
    listener.close()


def hand_quit_on() -> None:
    """In a nursery: a scheduler of SGLang that fails says so by SIGQUIT to its parent, which is to be the server."""
    server, nursery = os.getppid(), os.getpid()

    def quit_received(number: int, frame: object) -> None:
        if os.getpid() == nursery:
            os.kill(server, number)
            return
        signal.signal(number, signal.SIG_DFL)  # in what the nursery has forked
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGQUIT, quit_received)


def send_environment() -> None:
    library: Any = spawn
    data_of, prepare = library.get_preparation_data, library.prepare

    def data_with_environment(name: str) -> dict[str, Any]:
        return {**data_of(name), "environment": dict(os.environ)}

    def prepare_in_environment(data: dict[str, Any]) -> None:
        draw_anew()
        be_in(data.pop("environment"))
        prepare(data)

    library.get_preparation_data, library.prepare = data_with_environment, prepare_in_environment


if __name__ == "__main__":
    main()
