"""Environment variables that add options to every JVM; the messenger's JVM does not take them.

Agents of monitoring systems and memory settings of other programs come to a pod by these. Here they would end the
engine's worker without a sentence (two garbage collectors, an agent that cannot be loaded) or change a heap that is
sized for the messenger. Options for this JVM have an option of their own, ``jvm_options``.
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
    """Takes the variables out of this process's environment, where the JVM would read them, and puts them back."""
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
