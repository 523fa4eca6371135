"""The backend is known in processes that load no plugin of SGLang: launchers of other projects, tokenizer workers.

Each runs in a fresh process of the environment that the wheel is installed in.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

LIMIT_SECONDS = 600.0
LAUNCHER = """
import argparse, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(add_help=False)
ServerArgs.add_cli_args(parser)
named = ["--model-path", "x", "--disaggregation-transfer-backend", "kv_messenger"]
assert parser.parse_args(named).disaggregation_transfer_backend == "kv_messenger"
from sglang.srt.disaggregation import utils
from sglang.srt.managers import disagg_service, multi_tokenizer_mixin
backend = multi_tokenizer_mixin.TransferBackend("kv_messenger")
assert backend is disagg_service.TransferBackend("kv_messenger") is utils.TransferBackend.KV_MESSENGER
assert utils.get_kv_class(utils.TransferBackend.FAKE, utils.KVClassType.SENDER).__name__ == "FakeKVSender"
assert utils.get_kv_class(backend, utils.KVClassType.KVARGS).__name__ == "KVArgs"
assert not [name for name in sys.modules if name.startswith("kv_connector.")], "nothing of ours was needed"
"""
OTHER_PLUGINS = (
    LAUNCHER
    + """
from sglang.srt.plugins import load_plugins
load_plugins()
for kind in utils.KVClassType:
    if kind is not utils.KVClassType.KVARGS:
        try:
            utils.get_kv_class(backend, kind)
        except RuntimeError as refusal:
            print(refusal)
"""
)
PLUGINS_LATE = (
    LAUNCHER
    + """
from sglang.srt.plugins import load_plugins
load_plugins()
assert utils.TransferBackend("kv_messenger") is backend, "members that were taken before stay members"
print(utils.get_kv_class(backend, utils.KVClassType.BOOTSTRAP_SERVER).__name__)
"""
)
NO_SGLANG = """
import sys
assert "kv_connector_door" in sys.modules, "Python runs the wheel's .pth when it starts"
print([name for name in sys.modules if name.partition(".")[0] in ("kv_connector", "sglang", "torch")])
"""


def in_fresh_process(code: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "SGLANG_PLUGINS"}
    kernels = importlib.util.find_spec("sgl_kernel")  # without a GPU a stand-in, on this test's path only
    if kernels is not None and kernels.origin is not None:
        inherited["PYTHONPATH"] = str(Path(kernels.origin).parents[1])
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_should_load_nothing_where_sglang_is_not_imported() -> None:
    assert in_fresh_process(NO_SGLANG) == "[]"


def test_should_be_known_to_a_launcher_that_loads_plugins_late() -> None:
    assert in_fresh_process(PLUGINS_LATE) == "CommonKVBootstrapServer"


def test_should_name_the_variable_that_keeps_the_plugin_out() -> None:
    refusals = in_fresh_process(OTHER_PLUGINS, SGLANG_PLUGINS="another").splitlines()
    assert len(refusals) == 4
    assert all(line.startswith("SGLANG_PLUGINS is 'another', expected a list that contains") for line in refusals)
