"""Loads a JVM into this process, once, and obtains the table of functions that Java fills.

This takes a single JNI call. The JVM is never destroyed: its threads are daemons and end with the process.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kv_connector.configuration.options import Options
from kv_connector.exceptions import BootError
from kv_connector.runtime import jar_locale, preflight, system_calls
from kv_connector.runtime.aot_cache import NO_HOME, AotCache, cache_folder
from kv_connector.runtime.fault_handlers import FaultHandlers, enable_python_dumps_first
from kv_connector.runtime.function_table import Function, FunctionTable
from kv_connector.runtime.java_variables import java_variables_set_aside
from kv_connector.runtime.preflight import JavaRuntime

logger = logging.getLogger("kv_connector")

NO_THREADS = "unable to create native thread"
"""What Java says where threads are limited."""
MORE_THREADS = "raise what limits threads here, ulimit -u or the container's limit (pids.max)"
ENTRY_CLASS = "io/kvmessenger/connector/Boot"
TRAINING_CLASS = "io.kvmessenger.connector.AotTraining"

JVM_OPTIONS = (
    "-Xrs",  # SIGINT, SIGTERM and SIGQUIT stay as Python set them
    # KV memory is off-heap: the heap holds the control plane only. It grows on demand: 512 decoders took
    # 97 KiB each (50 MB), their waiting grants may take 32 MiB, frames in flight 8 MiB per link.
    "-Xmx256m",
    "-Xmn8m",  # short-lived objects only; a larger nursery would just add resident memory
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",  # no file in /tmp
    # The JVM logs to standard output; if that is a full pipe, synchronous logging would block all its threads.
    "-Xlog:async",
    "--enable-native-access=ALL-UNNAMED",
    "-Dsun.misc.unsafe.memory.access=allow",  # Netty and protobuf use it; avoids a warning
    "-Dio.netty.transport.noNative=true",
    "-Dio.netty.jfr.enabled=false",
)

_JNI_VERSION_10 = 0x000A0000
_JNI_FIND_CLASS = 6
_JNI_EXCEPTION_OCCURRED = 15
_JNI_EXCEPTION_CLEAR = 17
_JNI_GET_OBJECT_CLASS = 31
_JNI_GET_METHOD_ID = 33
_JNI_CALL_OBJECT_METHOD_A = 36
_JNI_GET_STATIC_METHOD_ID = 113
_JNI_CALL_STATIC_LONG_METHOD_A = 134
_JNI_GET_STRING_UTF_CHARS = 169


@dataclass(frozen=True, slots=True)
class JvmSetup:
    """The runtime, code and options of a JVM."""

    java: JavaRuntime
    class_path: tuple[Path, ...]
    class_path_hashes: tuple[str, ...]
    options: tuple[str, ...]
    build_id: str
    cache_folder: Path | None = None
    why_no_cache: str = "aot_cache is false"
    """Said if there is no cache folder."""
    entry_class: str = ENTRY_CLASS
    training_class: str = TRAINING_CLASS

    @property
    def all_options(self) -> tuple[str, ...]:
        """The options with the class path, in a form that the launcher accepts too."""
        return (*self.options, f"-Djava.class.path={':'.join(map(str, self.class_path))}")

    @property
    def aot_cache(self) -> AotCache | None:
        """Its AOT cache; None if it may not have one."""
        if self.cache_folder is None:
            return None
        return AotCache(self.java, self.class_path_hashes, self.all_options, self.cache_folder)


@dataclass(frozen=True, slots=True)
class _Booted:
    pid: int
    setup: JvmSetup
    table: FunctionTable


_lock = threading.Lock()
_booted: _Booted | None = None
_failed: BootError | None = None


def boot(options: Options) -> FunctionTable:
    """The table of this process's JVM, which is started if there is none yet; raises KvConnectorError."""
    if (table := _of_this_process()) is not None:
        return table
    return boot_setup(set_up(options))


def set_up(options: Options) -> JvmSetup:
    """Checks that everything a JVM needs is there; raises PreflightError if not."""
    java = preflight.find_java(options.java_home)
    jar = preflight.check_jar()
    system_calls.require()
    jar_locale.require(jar.path, java.home)
    jvm_options = (*JVM_OPTIONS, *options.jvm_options)
    folder, why_no_cache = _cache_place(options)
    preflight.try_options(java, jvm_options, options.jvm_options)
    return JvmSetup(
        java=java,
        class_path=(jar.path,),
        class_path_hashes=(jar.sha256,),
        options=jvm_options,
        build_id=jar.build_id,
        cache_folder=folder,
        why_no_cache=why_no_cache,
    )


def _cache_place(options: Options) -> tuple[Path | None, str]:
    """The folder of class caches, or None with the reason: a cache is a convenience."""
    if not options.aot_cache:
        return None, "aot_cache is false"
    folder = cache_folder()
    if folder is None:
        return None, NO_HOME
    unreadable = jar_locale.why_unreadable(folder)
    return (None, unreadable) if unreadable else (folder, "")


def prepare_setup(setup: JvmSetup) -> None:
    """Starts a process that creates the AOT cache if there is none. Loads no JVM into this process."""
    cache = setup.aot_cache
    try:
        if cache is not None and not cache.usable():
            cache.train(setup.java, setup.all_options, setup.training_class)
    except Exception as failure:  # a cache is a convenience: whatever keeps it from being made ends nothing
        logger.info("no class cache is made (%s): the next start is as slow as this one", failure)


def boot_setup(setup: JvmSetup) -> FunctionTable:
    """Starts this JVM, unless the process has one already, which is then used as it is."""
    global _booted, _failed
    with _lock:
        if (table := _of_this_process()) is not None:
            return table
        if _failed is not None:
            raise _failed  # a process can start one JVM only: there is no second attempt
        cache = setup.aot_cache
        unusable = setup.why_no_cache if cache is None else cache.why_unusable()
        logger.info("the JVM starts %s", f"without a class cache ({unusable})" if unusable else "with its class cache")
        try:
            table = _start(setup, cache.path if cache is not None and not unusable else None)
        except BootError as failure:
            _failed = failure
            raise
        _booted = _Booted(os.getpid(), setup, table)
    prepare_setup(setup)
    return table


def _start(setup: JvmSetup, cache: Path | None) -> FunctionTable:
    enable_python_dumps_first()
    jvm_options = (*setup.all_options, f"-XX:AOTCache={cache}") if cache else setup.all_options
    table = FunctionTable(_call_boot(_create_jvm(setup.java, jvm_options), setup.entry_class))
    FaultHandlers().watch()
    _check_build(table, setup)
    return table


def _of_this_process() -> FunctionTable | None:
    if _booted is None:
        return None
    if _booted.pid != os.getpid():
        raise BootError(
            f"the JVM was started by process {_booted.pid}, and this is process {os.getpid()}, forked from it, where no"
            " JVM can run: use the messenger only after the fork, or start workers with the spawn method"
            " (VLLM_WORKER_MULTIPROC_METHOD=spawn)"
        )
    return _booted.table


def _check_build(table: FunctionTable, setup: JvmSetup) -> None:
    running = json.loads(table.wait(Function.DESCRIBE, 0, b""))["buildId"]
    if running != setup.build_id:
        raise BootError(
            f"the JVM runs build {running} of the messenger, and the jar holds build {setup.build_id}: a stale class"
            f" cache is at work, take -XX:AOTCache out of jvm_options or delete {setup.cache_folder}, and start again"
        )
    logger.info("messenger build %s runs on Java %s", running, setup.java.version)


class _JavaVMOption(ctypes.Structure):
    _fields_ = (("optionString", ctypes.c_char_p), ("extraInfo", ctypes.c_void_p))


class _JavaVMInitArgs(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int32),
        ("nOptions", ctypes.c_int32),
        ("options", ctypes.POINTER(_JavaVMOption)),
        ("ignoreUnrecognized", ctypes.c_uint8),
    )


def _create_jvm(java: JavaRuntime, options: Sequence[str]) -> ctypes.c_void_p:
    try:
        library = ctypes.CDLL(str(java.libjvm))
    except OSError as failure:
        raise BootError(
            f"{java.libjvm} cannot be loaded ({failure}): set java_home to another Java runtime"
        ) from failure
    option_array = (_JavaVMOption * len(options))(*(_JavaVMOption(option.encode(), None) for option in options))
    arguments = _JavaVMInitArgs(_JNI_VERSION_10, len(options), option_array, 0)
    machine, environment = ctypes.c_void_p(), ctypes.c_void_p()
    with java_variables_set_aside():
        result = library.JNI_CreateJavaVM(ctypes.byref(machine), ctypes.byref(environment), ctypes.byref(arguments))
    if result != 0:
        raise BootError(
            f"Java {java.version} at {java.home} did not start (JNI result {result}; it says why on standard"
            " output or error): look at jvm_options, and whether this process has loaded another JVM"
        )
    return environment


class _Jni:
    """The few JNI functions that one call needs. Used by the thread that created the JVM only."""

    def __init__(self, environment: ctypes.c_void_p) -> None:
        self._environment = environment
        self._functions = ctypes.cast(
            ctypes.cast(environment, ctypes.POINTER(ctypes.c_void_p)).contents.value or 0,
            ctypes.POINTER(ctypes.c_void_p),
        )

    def call(self, index: int, *arguments: object, result: type = ctypes.c_void_p) -> int | None:
        types = [ctypes.c_char_p if isinstance(a, bytes) else ctypes.c_void_p for a in arguments]
        function = ctypes.CFUNCTYPE(result, ctypes.c_void_p, *types)(self._functions[index])
        value: int | None = function(self._environment, *arguments)
        return value

    def thrown(self) -> str | None:
        """The pending Java exception as text; None if there is none."""
        failure = self.call(_JNI_EXCEPTION_OCCURRED)
        if not failure:
            return None
        self.call(_JNI_EXCEPTION_CLEAR)
        its_class = self.call(_JNI_GET_OBJECT_CLASS, failure)
        to_text = self.call(_JNI_GET_METHOD_ID, its_class, b"toString", b"()Ljava/lang/String;")
        text = self.call(_JNI_CALL_OBJECT_METHOD_A, failure, to_text, None)
        characters = self.call(_JNI_GET_STRING_UTF_CHARS, text, None) if text else None
        return ctypes.string_at(characters).decode(errors="replace") if characters else "an unnamed failure"


def _call_boot(environment: ctypes.c_void_p, entry_class: str) -> int:
    jni = _Jni(environment)
    found = jni.call(_JNI_FIND_CLASS, entry_class.encode())
    method = jni.call(_JNI_GET_STATIC_METHOD_ID, found, b"boot", b"()J") if found else None
    address = jni.call(_JNI_CALL_STATIC_LONG_METHOD_A, found, method, None, result=ctypes.c_int64) if method else None
    thrown = jni.thrown()
    if thrown is not None or not address:
        raise BootError(f"{entry_class}.boot failed ({thrown or 'no table'}): {boot_remedy(thrown or '')}")
    return address


def boot_remedy(thrown: str) -> str:
    """What to do about what Java has thrown at a start."""
    return MORE_THREADS if NO_THREADS in thrown else "install the kv-connector wheel again, and report this line"
