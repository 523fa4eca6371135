"""What a fresh process of a boot test imports: a JVM with the messengers that Java's own tests simulate."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from kv_connector import Messenger, Options, parse_options
from kv_connector.runtime import facade, jvm, preflight

ENTRY_CLASS = "io/kvmessenger/connector/boot/SimulatedBoot"


def setup(**changes: Any) -> jvm.JvmSetup:
    jar = preflight.check_jar()
    java = preflight.find_java("")
    simulated = Path(os.environ["KV_TEST_SIMULATED_JAR"])
    made = jvm.JvmSetup(
        java=java,
        class_path=(jar.path, simulated),
        class_path_hashes=(jar.sha256, "simulated"),
        options=jvm.JVM_OPTIONS,
        build_id=jar.build_id,
        entry_class=ENTRY_CLASS,
    )
    return replace(made, **changes)


def options(**given: Any) -> Options:
    return parse_options(given, role="decoder", engine_id="here")


def open_messenger(**changes: Any) -> Messenger:
    jvm.boot_setup(setup(**changes))
    return Messenger.open(options(), geometry())


def geometry() -> facade.Geometry:
    return {
        "model": "m",
        "tpSize": 1,
        "ppSize": 1,
        "groups": [
            {
                "kind": "full",
                "windowTokens": 0,
                "dtype": "float32",
                "elementBytes": 4,
                "pageTokens": 16,
                "layout": "HND",
                "kvHeadCount": 2,
                "pageCount": 4,
            }
        ],
        "ranks": [
            {
                "tpRank": 0,
                "ppRank": 0,
                "memories": [{"kind": "host", "address": 4096, "lengthBytes": 4096, "memfd": -1}],
                "layers": [
                    {
                        "name": "0",
                        "groupIndex": 0,
                        "memoryIndex": 0,
                        "offsetBytes": 0,
                        "pageStrideBytes": 64,
                        "pageBytes": 64,
                    }
                ],
            }
        ],
    }


def misbehave(how: str) -> dict[str, str]:
    return {"do": "misbehave", "how": how}
