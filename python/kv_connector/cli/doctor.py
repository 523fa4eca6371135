"""Checks whether an engine with these options would start and could move KV here; prints one line per check."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from kv_connector import _preflight
from kv_connector._aot_cache import AotCache
from kv_connector._jvm import set_up
from kv_connector.cli import machine
from kv_connector.cli.findings import Finding, fail, ok, warn
from kv_connector.cli.gpus import gpus
from kv_connector.exceptions import OptionError, PreflightError
from kv_connector.options import Options

PROBE = "kv_connector.cli.probe"
PROBE_LIMIT_SECONDS = 120.0
LOOPBACK = "127.0.0.1"
LEFT_OUT = "a transport is left out: "


def examine(read_options: Callable[[], Options]) -> Iterator[Finding]:
    """Runs all checks, in the order in which an engine's start would need them."""
    yield machine.system()
    yield from machine.engines()
    options = None
    try:
        options = read_options()
    except OptionError as wrong:
        yield fail("options", str(wrong))
    else:
        yield ok("options", f"role {options.role}, {'TLS' if options.tls_ca else 'no TLS'}, {secret(options)}")
    yield machine.shared_memory()
    yield machine.descriptors()
    yield machine.locked_memory()
    yield machine.clock()
    yield machine.cores()
    yield from gpus(options)
    runtime = list(java(options.java_home if options else ""))
    yield from runtime
    if options is not None:
        yield from machine.rdma(options)
        yield machine.reach(options)
        ports = machine.ports(options)
        yield from ports
        if all(finding.level == "ok" for finding in runtime):
            free = all(port.level == "ok" for port in ports)
            yield from messenger(options if free else on_free_ports(options))


def secret(options: Options) -> str:
    """Whether there is a secret; never the secret itself."""
    return "with a shared secret" if options.shared_secret else "no shared secret"


def class_cache(cache: AotCache) -> str:
    """The class cache that is used, or why there is none."""
    if not cache.path.exists():
        return f"none yet: the first start makes {cache.path}"
    unusable = cache.why_unusable()
    return f"not used: {unusable}" if unusable else str(cache.path)


def messenger(options: Options) -> Iterator[Finding]:
    """Checks that a messenger can be opened."""
    try:
        setup = set_up(options)
    except PreflightError as unfit:
        yield fail("JVM", str(unfit))
        return
    if setup.aot_cache is not None:
        yield ok("class cache", class_cache(setup.aot_cache))
    yield from probed(probe(options), options)


def java(java_home: str) -> Iterator[Finding]:
    """Checks the runtime and the jar; a failure has the error message of an engine's start."""
    try:
        found = _preflight.find_java(java_home)
        yield ok("Java", f"{found.version} at {found.home}")
    except PreflightError as unfit:
        yield fail("Java", str(unfit))
    try:
        jar = _preflight.check_jar()
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
    said = json.dumps(dataclasses.asdict(dataclasses.replace(options, aot_cache=False)))
    try:
        ran = subprocess.run(
            [sys.executable, "-m", PROBE],
            input=said,
            capture_output=True,
            text=True,
            timeout=PROBE_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no messenger was open after {PROBE_LIMIT_SECONDS:.0f} s: look at the machine's load"}
    last = ran.stdout.rstrip().rpartition("\n")[2]
    if ran.returncode == 0 and last.startswith("{"):
        return dict(json.loads(last))
    reason = ran.stderr.strip().rpartition("\n")[2] or "nothing on standard error"
    return {"error": f"the process with the JVM ended with status {ran.returncode} ({reason})"}


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
    """Prints each finding; returns 1 if one of them is a failure, else 0."""
    failed = False
    for finding in examine(read_options):
        say(f"{finding}\n")
        failed |= finding.level == "fail"
    return int(failed)
