"""An engine asks its own HTTP server with the key that vLLM has from the environment, unless an option names one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kv_connector.vllm.engine_facts import OWN_KEY_VARIABLE, read_options

OWN, NAMED = "own-31d7", "named-c902"


@pytest.mark.parametrize("option", ["", NAMED])
@pytest.mark.parametrize("variable", [None, "", OWN, "two\nlines"])
def test_should_take_vllms_own_key_unless_an_option_names_one(
    monkeypatch: pytest.MonkeyPatch, option: str, variable: str | None
) -> None:
    if variable is None:
        monkeypatch.delenv(OWN_KEY_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(OWN_KEY_VARIABLE, variable)
    given = {"engine_api_key": option} if option else {}
    transfer = SimpleNamespace(
        kv_role="kv_both", kv_connector_extra_config=given, engine_id="e", kv_port=14579, kv_connector="x"
    )
    options = read_options(SimpleNamespace(kv_transfer_config=transfer))
    assert options.for_java()["engineApiKey"] == (option or (OWN if variable == OWN else ""))
    assert not [key for key in (OWN, NAMED) if key in repr(options)]
