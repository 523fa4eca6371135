"""Dashboard and alert rules are as they are made, and name no figure that no page has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import generate
import metric_names
import pytest
from alert_rules import RULES, TROUBLESHOOTING
from dashboard import DASHBOARDS as PAGES
from dashboard import Dashboard
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "dashboards"
QUERIES = [
    query for page in PAGES for panels in page.rows.values() for panel in panels for query in panel.queries.values()
]
RULE_QUERIES = [rule.query for rule in RULES]


def anchors(page: Path) -> set[str]:
    """As hosts of repositories make them from headings."""
    titles = [line.lstrip("# ") for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", list(generate.files()))
def test_file_is_as_it_is_made(name: str) -> None:
    made = generate.files()[name]
    assert (DASHBOARDS / name).read_text(encoding="utf-8") == made, "stale: run python3 dashboards/generate.py"


def kept_by_grafana(written: dict[str, Any]) -> object:
    """What Grafana's own model of a dashboard takes of it: what that does not know is gone."""
    plugins.register_default_plugins()
    return json.loads(JSONEncoder().encode(GrafanaDashboard.from_json(written)))


def lost(written: object, kept: object, path: str = "") -> list[str]:
    """Where something was written that was not kept."""
    if isinstance(written, dict) and isinstance(kept, dict):
        missing = [f"{path}/{key}" for key in written.keys() - kept.keys()]
        return missing + [
            at for key in written.keys() & kept.keys() for at in lost(written[key], kept[key], f"{path}/{key}")
        ]
    if isinstance(written, list) and isinstance(kept, list) and len(written) == len(kept):
        return [at for i, pair in enumerate(zip(written, kept, strict=True)) for at in lost(*pair, f"{path}/{i}")]
    return [] if written == kept else [path]


@pytest.mark.parametrize("file", sorted(DASHBOARDS.glob("*.json")), ids=lambda file: file.stem)
def test_grafana_s_own_model_keeps_all_of_a_dashboard(file: Path) -> None:
    written = json.loads(file.read_text(encoding="utf-8"))
    assert lost(written, kept_by_grafana(written)) == []
    written["panels"][1]["fieldConfig"]["defaults"]["unitt"] = "s"
    assert lost(written, kept_by_grafana(written)) == ["/panels/1/fieldConfig/defaults/unitt"]


def test_every_figure_in_every_query_is_on_the_page() -> None:
    named = {name for query in (*QUERIES, *RULE_QUERIES) for name in metric_names.names_in(query)}
    assert len(named) > 40
    assert named <= set(metric_names.metrics())


def test_every_figure_in_the_files_is_on_the_page() -> None:
    """Whatever made them: also what stands in a variable."""
    named = {name for file in DASHBOARDS.glob("*.[jy]*") for name in metric_names.names_in(file.read_text())}
    assert named <= set(metric_names.metrics())


def test_a_counter_without_its_ending_is_noticed() -> None:
    assert not metric_names.names_in("rate(kv_messenger_fetches_failed[5m])") <= set(metric_names.metrics())


@pytest.mark.parametrize("query", [*QUERIES, *RULE_QUERIES])
def test_query_is_well_formed(query: str) -> None:
    assert query.count("(") == query.count(")")
    assert query.count("{") == query.count("}")
    for counter in re.findall(r"kv_messenger_\w+_(?:total|bucket|sum|count)\b", query):
        within = rf"(?:rate|increase)\({counter}(?:\{{[^}}]*\}})?\["
        assert re.search(within, query), f"{counter} only ever grows, and is not looked at as a rate"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_names_a_part_of_the_page_on_troubleshooting(rule: object) -> None:
    assert getattr(rule, "runbook") in anchors(ROOT / TROUBLESHOOTING)  # noqa: B009


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.uid)
def test_panels_have_numbers_of_their_own_and_do_not_overlap(page: Dashboard) -> None:
    panels = json.loads((DASHBOARDS / f"{page.uid}.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 8
    taken = [
        (x, y)
        for position in (panel["gridPos"] for panel in panels)
        for x in range(position["x"], position["x"] + position["w"])
        for y in range(position["y"], position["y"] + position["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
