"""Checks whether an engine with these options would start and could move KV here; prints one line per check."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from kv_connector.cli import machine
from kv_connector.cli.findings import Finding, fail, ok, warn
from kv_connector.cli.gpus import gpus
from kv_connector.configuration.options import Options
from kv_connector.exceptions import OptionError, PreflightError
from kv_connector.runtime import preflight
from kv_connector.runtime.jvm import MORE_THREADS, NO_THREADS, JvmSetup, set_up

PROBE = "kv_connector.cli.probe"
PROBE_LIMIT_SECONDS = 120.0
LOOPBACK = "127.0.0.1"
LEFT_OUT = "a transport is left out: "


Check = Callable[[], Finding | Iterable[Finding]]


def guarded(what: str, check: Check) -> Iterator[Finding]:
    """The findings of a check; a check that fails yields one finding, and the next ones still run."""
    try:
        found = check()
        yield from [found] if isinstance(found, Finding) else found
    except OptionError as wrong:
        yield fail(what, str(wrong))
    except OSError as refused:
        yield fail(what, f"the check was refused ({refused})", "look at the limits of this container or host")
    except Exception as fault:
        yield fail(what, f"the check itself failed ({type(fault).__name__}: {fault})", "report this line")


def examine(read_options: Callable[[], Options]) -> Iterator[Finding]:
    """Runs all checks, each under a guard of its own, in the order in which an engine's start would need them."""
    yield from guarded("system", machine.system)
    yield from guarded("engine", machine.engines)
    read: list[Options] = []
    yield from guarded("options", lambda: options_finding(read_options, read))
    options = read[0] if read else None
    yield from guarded("variables", machine.variables)
    yield from guarded("system calls", machine.calls)
    yield from guarded("shared memory", machine.shared_memory)
    yield from guarded("open files", machine.descriptors)
    yield from guarded("locked memory", machine.locked_memory)
    yield from guarded("clock", machine.clock)
    yield from guarded("cores", machine.cores)
    yield from guarded("GPU", lambda: gpus(options))
    runtime = list(guarded("Java", lambda: java(options.java_home if options else "")))
    yield from runtime
    if options is not None:
        yield from moving(options, all(finding.level == "ok" for finding in runtime))


def options_finding(read_options: Callable[[], Options], read: list[Options]) -> Finding:
    """Reads the options into ``read``; raises OptionError."""
    options = read_options()
    read.append(options)
    return ok("options", f"role {options.role}, {'TLS' if options.tls_ca else 'no TLS'}, {secret(options)}")


def moving(options: Options, java_is_fit: bool) -> Iterator[Finding]:
    """The checks that need options: addresses, ports, and a messenger that is opened and closed."""
    yield from guarded("RDMA devices", lambda: machine.rdma(options))
    yield from guarded("reach", lambda: machine.reach(options))
    ports = list(guarded("ports", lambda: machine.ports(options)))
    yield from ports
    if java_is_fit:
        free = all(port.level == "ok" for port in ports)
        yield from guarded("messenger", lambda: messenger(options if free else on_free_ports(options)))


def secret(options: Options) -> str:
    """Whether there is a secret; never the secret itself."""
    return "with a shared secret" if options.shared_secret else "no shared secret"


def class_cache(setup: JvmSetup) -> Finding:
    """The class cache in use, or why there is none; without one a start is only slower."""
    cache = setup.aot_cache
    remedy = "starts take longer; set KV_MESSENGER_CACHE to a folder of this user's"
    if cache is None:
        return warn("class cache", f"none: {setup.why_no_cache}", remedy)
    unusable = cache.why_unusable()
    if not unusable:
        return ok("class cache", str(cache.path))
    if cache.path.is_file():
        return warn("class cache", f"not used: {unusable}", remedy)
    unmakeable = cache.why_unmakeable()
    if unmakeable:
        return warn("class cache", f"none: {unmakeable}", remedy)
    return ok("class cache", f"none yet: the first start makes {cache.path}")


def messenger(options: Options) -> Iterator[Finding]:
    """Checks that a messenger can be opened."""
    try:
        setup = set_up(options)
    except PreflightError as unfit:
        yield fail("JVM", str(unfit))
        return
    if options.aot_cache:
        yield from guarded("class cache", lambda: class_cache(setup))
    yield from probed(probe(options), options)


def java(java_home: str) -> Iterator[Finding]:
    """Checks the runtime and the jar; a failure has the error message of an engine's start."""
    try:
        found = preflight.find_java(java_home)
        yield ok("Java", f"{found.version} at {found.home}")
    except PreflightError as unfit:
        yield fail("Java", str(unfit))
    try:
        jar = preflight.check_jar()
        yield ok("jar", f"build {jar.build_id} at {jar.path}")
    except PreflightError as unfit:
        yield fail("jar", str(unfit))


def on_free_ports(options: Options) -> Options:
    """The options on loopback and any free ports: errors of the ports have been reported already."""
    return dataclasses.replace(
        options,
        listen_host=LOOPBACK,
        advertise_host="",
        metrics_host=LOOPBACK,
        listen_port=0,
        data_hosts=(),
        data_port=0,
        metrics_port=min(0, options.metrics_port),
    )


def probe(options: Options) -> dict[str, Any]:
    """Opens a messenger in a process of its own, so that nothing remains of it."""
    options_json = json.dumps(dataclasses.asdict(dataclasses.replace(options, aot_cache=False)))
    try:
        ran = subprocess.run(
            [sys.executable, "-m", PROBE],
            input=options_json,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no messenger was open after {PROBE_LIMIT_SECONDS:.0f} s: look at the machine's load"}
    last = ran.stdout.rstrip().rpartition("\n")[2]
    if ran.returncode == 0 and last.startswith("{"):
        return dict(json.loads(last))
    reason = last_words(ran.stderr) or last_words(ran.stdout) or "it printed nothing"
    remedy = limit_remedy(reason) if ran.returncode > 0 else REMEDIES.get(ran.returncode, "")
    return {"error": f"the process with the JVM {ending(ran.returncode)} ({reason}){remedy}"}


NO_MEMORY = re.compile(
    r"could not (?:allocate|reserve)|cannot allocate memory|not enough (?:space|memory)", re.IGNORECASE
)
"""What a JVM or the C library prints where memory is limited."""
MORE_MEMORY = ": raise what limits memory here, ulimit -v or the container's limit"
REMEDIES = {
    -signal.SIGKILL: ": give the container or host more memory, if its limit is what ended it (see dmesg)",
    -signal.SIGSEGV: ": raise the limit of a thread's stack, ulimit -s, to 8192 or more, and take jvm_options out",
    -signal.SIGXFSZ: ": raise the limit of a file's length, ulimit -f",
    -signal.SIGXCPU: ": raise the limit of processor time, ulimit -t",
}
"""What to do where a signal leaves no reason."""


def limit_remedy(reason: str) -> str:
    """What to raise where a limit of memory or threads is the reason; "" where it is not."""
    if NO_THREADS in reason:
        return f": {MORE_THREADS}"
    return MORE_MEMORY if NO_MEMORY.search(reason) else ""


def ending(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def last_words(printed: str) -> str:
    """The last line that gives a reason; a JVM prints its own on standard output."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith(preflight.NO_REASONS)]
    return (reasons or lines or [""])[-1]


def probed(answer: dict[str, Any], options: Options) -> Iterator[Finding]:
    """The findings of a probe's answer."""
    if "error" in answer:
        yield fail("messenger", answer["error"])
        return
    yield ok("messenger", f"opened and closed, version {answer['version']} on Java {answer['java']}")
    left_out = [line.removeprefix(LEFT_OUT) for line in answer["warnings"] if line.startswith(LEFT_OUT)]
    for reason in left_out:
        yield warn("transport", f"left out: {reason}")
    if not left_out:
        yield ok("transport", f"{' and '.join(options.transports)} opened")
    for line in answer["warnings"]:
        if not line.startswith(LEFT_OUT):
            yield warn("log", line)
    count = answer["transferThreads"]
    yield ok("threads", f"bytes are moved by {f'{count} threads of their own' if count else 'the messenger thread'}")


def report(read_options: Callable[[], Options], say: Callable[[str], object]) -> int:
    """Prints each finding, then how many there were and which failed; returns 1 if one of them did, else 0."""
    findings = []
    for finding in examine(read_options):
        say(f"{finding}\n")
        findings.append(finding)
    say(f"{summary(findings)}\n")
    return int(any(finding.level == "fail" for finding in findings))


def summary(findings: Sequence[Finding]) -> str:
    """The last line: it names what failed and what warns, since the lines above may have scrolled away."""
    count = len(findings)
    failed = [finding.what for finding in findings if finding.level == "fail"]
    warned = [finding.what for finding in findings if finding.level == "warn"]
    begin = f"{len(failed)} of {count} failed: {', '.join(failed)}" if failed else f"none of {count} failed"
    return f"{begin}; {len(warned)} to look at: {', '.join(warned)}" if warned else begin
