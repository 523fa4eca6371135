"""What is logged of environment variables that change nothing: once for each in a process.

An engine reads its options several times.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kv_connector.configuration import option_variables

logger = logging.getLogger("kv_connector")

_warned: set[str] = set()


def warn_of_unknown(kinds: Mapping[str, option_variables.Kind], environment: Mapping[str, str]) -> None:
    """Names variables that have the prefix of options and match none."""
    for sentence in option_variables.unknown_sentences(kinds, environment):
        if sentence not in _warned:
            _warned.add(sentence)
            logger.warning("%s", sentence)


def warn_of_overruled(name: str, value: object, used: object) -> None:
    """Names the variable of an option that the configuration sets to something else."""
    variable = option_variables.variable_of(name)
    if (tuple(value) if isinstance(value, list) else value) != used and variable not in _warned:
        _warned.add(variable)
        logger.warning("environment variable %s changes nothing: option %r is set in the configuration", variable, name)
