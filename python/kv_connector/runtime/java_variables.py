"""Environment variables that add options to every JVM; the messenger's JVM ignores them.

In a pod they carry agents of monitoring systems and memory settings of other programs. Here they would end the
engine's worker without an error message (two garbage collectors, an agent that cannot be loaded) or change the heap
size, which is chosen for the messenger. Options for this JVM are set by ``jvm_options``.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

logger = logging.getLogger("kv_connector")

JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS")


def environment_of_java() -> dict[str, str]:
    """This process's environment for a Java process that it starts."""
    return {name: value for name, value in os.environ.items() if name not in JAVA_VARIABLES}


@contextlib.contextmanager
def java_variables_set_aside() -> Iterator[None]:
    """A context in which this process's environment lacks the variables, so that the JVM does not read them."""
    found = {name: os.environ.pop(name) for name in JAVA_VARIABLES if name in os.environ}
    if found:
        logger.info(
            "the messenger's JVM does not take %s from the environment: put its options into jvm_options",
            " and ".join(found),
        )
    try:
        yield
    finally:
        os.environ.update(found)
