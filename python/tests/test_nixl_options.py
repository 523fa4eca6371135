"""Options of another connector are refused with what to do here, and the page says the same."""

from __future__ import annotations

import re

import pytest
from conftest import REPOSITORY

from kv_connector import OptionError, parse_options
from kv_connector.configuration import releases
from kv_connector.configuration.nixl_options import NIXL_OPTIONS
from kv_connector.configuration.options import OPTION_SPECS


@pytest.mark.parametrize("name", list(NIXL_OPTIONS))
def test_should_say_what_to_do_with_an_option_of_nixls(name: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_options({name: 1}, role="decoder", engine_id="e")
    assert str(refused.value) == (
        f"unknown option {name!r} in kv_connector_extra_config, which is NixlConnector's: {NIXL_OPTIONS[name]}"
    )
    named = re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|transports", NIXL_OPTIONS[name])
    assert set(named) <= set(OPTION_SPECS)


def test_should_have_no_option_of_the_same_name() -> None:
    assert not set(NIXL_OPTIONS) & set(OPTION_SPECS)


def test_should_keep_the_page_like_the_table() -> None:
    page = (REPOSITORY / "docs" / "from-nixl.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page.split("<!-- options:")[1], re.MULTILINE)
    assert dict(rows) == NIXL_OPTIONS


def test_should_list_the_releases_of_engines_that_are_known() -> None:
    page = (REPOSITORY / "docs" / "compatibility.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (vLLM|SGLang) \| ([\d.]+) \|", page.split("<!-- engines:")[1], re.MULTILINE)
    assert tuple(version for engine, version in rows if engine == "vLLM") == releases.VLLM
    assert tuple(version for engine, version in rows if engine == "SGLang") == releases.SGLANG
