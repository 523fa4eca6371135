"""``python -m kv_connector.prepare``: makes the class cache now, so that already the first engine starts fast.

For the build of an image, or after ``pip install``. An engine that finds no cache starts without one, and has it made
in the background for the next.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from kv_connector.configuration.options import parse_options
from kv_connector.exceptions import BootError, KvConnectorError
from kv_connector.runtime.aot_cache import TRAINING_LIMIT_SECONDS
from kv_connector.runtime.jvm import JvmSetup, prepare_setup, set_up

LOOK_SECONDS = 0.1


def main(arguments: list[str]) -> int:
    """Returns the exit code; prints one sentence."""
    parser = argparse.ArgumentParser(prog="python -m kv_connector.prepare", description=__doc__)
    parser.add_argument(
        "--extra-config",
        default="{}",
        help="the engine's kv_connector_extra_config, as JSON; its java_home and jvm_options count",
    )
    try:
        extra = json.loads(parser.parse_args(arguments).extra_config)
    except ValueError as fault:
        print(f"--extra-config is no JSON ({fault}): pass what kv_connector_extra_config is given", file=sys.stderr)  # noqa: T201
        return 2
    if not isinstance(extra, dict):
        print(f"--extra-config is {extra!r}, expected a JSON object of options", file=sys.stderr)  # noqa: T201
        return 2
    try:
        print(made(set_up(parse_options(extra, role="both", engine_id="prepare"))))  # noqa: T201
    except KvConnectorError as fault:
        print(fault, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def made(setup: JvmSetup) -> str:
    """Waits until the cache is there and readable for all users; returns a sentence that names it."""
    cache = setup.aot_cache
    if cache is None and setup.why_no_cache != "aot_cache is false":
        raise BootError(
            f"there is no place for a class cache ({setup.why_no_cache}): set KV_MESSENGER_CACHE to a folder"
        )
    if cache is None:
        raise BootError("aot_cache is false, expected true: there is no class cache to make")
    limit = time.monotonic() + TRAINING_LIMIT_SECONDS
    prepare_setup(setup)
    while not cache.usable():
        if not cache.training() or time.monotonic() > limit:
            raise BootError(
                f"no class cache could be made at {cache.path}: is the folder this user's own and writable?"
            )
        time.sleep(LOOK_SECONDS)
    cache.share()
    return f"the class cache is {cache.path}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
