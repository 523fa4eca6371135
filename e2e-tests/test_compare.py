"""`kv-messenger compare` finds a pair whose sides compute different things although no check of its own refuses it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

from bed import Bed, Messenger, decoder, prefiller
from server_process import start_all
from servers import router

COMPARE_LIMIT_SECONDS = 300
LENGTHS = (20, 200, 700)
OTHER_BASE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}}
WARNING = r"rope_parameters\.rope_theta is .*, which settings_may_differ excuses"
EXCUSED = {"settings_may_differ": ["rope_parameters.rope_theta", "built.rope"]}
"""The second is the table that follows from the first."""


def compare(source: Messenger, target: Messenger, bed: Bed, stack: ExitStack) -> subprocess.CompletedProcess[str]:
    """Through the stock router, as one does before a pair gets requests."""
    front = router(f"router-{target.server.name}", [source.server], [target.server], bed.folder)
    stack.callback(front.stop)
    start_all([front], print)
    command = [sys.executable, "-m", "kv_connector", "compare", front.url, target.server.url]
    command += ["--lengths", ",".join(map(str, LENGTHS))]
    found = subprocess.run(command, capture_output=True, text=True, timeout=COMPARE_LIMIT_SECONDS, check=False)
    print(found.stdout, found.stderr)
    return found


def test_sides_that_compute_the_same_compare_as_equal(bed: Bed, stack: ExitStack) -> None:
    found = compare(bed.prefiller, bed.decoder, bed, stack)
    assert found.returncode == 0, found.stderr
    assert f"{len(LENGTHS)} of {len(LENGTHS)} lengths: same" in found.stdout


def test_an_excused_setting_that_changes_the_answers_is_found(bed: Bed, stack: ExitStack) -> None:
    """The comparison of settings is told to let it pass, and that of computed KV is off: requests are answered."""
    other: dict[str, Any] = {"arguments": ("--hf-overrides", json.dumps(OTHER_BASE))}
    source, target = bed.started(
        stack,
        prefiller("prefiller-other-base", extra=EXCUSED, options=other),
        decoder("decoder-excusing", extra={**EXCUSED, "last_token_check": "off"}),
    )
    found = compare(source, target, bed, stack)
    for side in (source, target):
        assert re.search(WARNING, side.server.log()), "the excuse was not needed: the test shows nothing"
    assert found.returncode == 1, found.stdout + found.stderr
    named = re.search(r"the first that differs has (\d+) tokens: ", found.stdout)
    assert named, found.stdout
    assert int(named[1]) in LENGTHS
    assert "failed" not in found.stdout, "the pair must answer: what it answers is compared"
    assert target.metric("kv_messenger_fetches_arrived_total") >= len(LENGTHS)
