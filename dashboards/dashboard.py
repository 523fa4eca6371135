"""The Grafana dashboard: its rows, panels and queries; each panel says what its figures count, in the enum's words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from metric_names import metrics, names_in

WINDOW = "$__rate_interval"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
PANEL_WIDTH = 8
PANEL_HEIGHT = 7
PANELS_A_ROW = 3


@dataclass(frozen=True)
class Panel:
    """One graph: queries by legend."""

    title: str
    unit: str
    queries: dict[str, str]


def rate(name: str) -> str:
    return f'sum by (instance) (rate({name}{{instance=~"$instance"}}[{WINDOW}]))'


def now(name: str) -> str:
    return f'sum by (instance) ({name}{{instance=~"$instance"}})'


def quantile(name: str, of: float) -> str:
    return f'histogram_quantile({of}, sum by (le) (rate({name}{{instance=~"$instance"}}[{WINDOW}])))'


def rates(title: str, unit: str = "cps", **names: str) -> Panel:
    """Counters, each by its legend."""
    return Panel(title, unit, {legend: rate(f"kv_messenger_{name}_total") for legend, name in names.items()})


def gauges(title: str, unit: str = "short", **names: str) -> Panel:
    return Panel(title, unit, {legend: now(f"kv_messenger_{name}") for legend, name in names.items()})


def by_reason(title: str, name: str) -> Panel:
    """A counter that is told apart by reason, of all messengers together."""
    query = f'sum by (reason) (rate(kv_messenger_{name}_total{{instance=~"$instance"}}[{WINDOW}]))'
    return Panel(title, "cps", {"{{reason}}": query})


def quantiles(title: str, name: str) -> Panel:
    bucket = f"kv_messenger_{name}_bucket"
    return Panel(title, "s", {f"p{100 * of:g}": quantile(bucket, of) for of in (0.5, 0.9, 0.99)})


ROWS: dict[str, tuple[Panel, ...]] = {
    "Does it work": (
        rates("Fetches", started="fetches_started", arrived="fetches_arrived", failed="fetches_failed"),
        rates("Prefills", started="prefills_started", sent="prefills_sent", undelivered="prefills_undelivered"),
        rates("Prefills that nothing asked for", expired="prefills_expired", declined="grants_declined"),
        by_reason("Why fetches fail", "fetches_failed"),
        by_reason("Why prefills are not delivered", "prefills_undelivered"),
    ),
    "How fast": (
        quantiles("From the engine's fetch to the last write", "fetch_seconds"),
        quantiles("From the end of the forward pass to the last write", "prefill_tail_seconds"),
        quantiles("From the last write to the engine's poll", "ready_poll_seconds"),
        quantiles("From the engine's fetch to its grant", "grant_delay_seconds"),
        quantiles("Grants wait for their prompt", "grant_queued_seconds"),
        quantiles("From grant and prompt to the first write", "first_write_seconds"),
        quantiles("To connect", "connect_seconds"),
        Panel(
            "Share of layers that left during their forward pass",
            "percentunit",
            {"early": f"{rate('kv_messenger_layers_sent_early_total')} / {rate('kv_messenger_layers_sent_total')}"},
        ),
        rates("KV sent and received", "Bps", sent="sent_bytes", received="received_bytes"),
        rates(
            "Writes", sent="transport_writes_sent", saved="transport_writes_saved", again="transport_writes_repeated"
        ),
        rates("Waiting for a queue", writes="back_pressured", transports="transport_back_pressured"),
    ),
    "What is held": (
        gauges("Open", fetches="fetches_open", prefills="prefills_open", grants="grants_waiting"),
        gauges("Under way", writes="writes_in_flight", windows="windows_open"),
        gauges("Pages out of use", quarantined="pages_quarantined"),
        gauges("The JVM's heap", "bytes", used="jvm_heap_used_bytes", limit="jvm_heap_max_bytes"),
        rates("Share of the time that the JVM collects garbage", "percentunit", collecting="jvm_gc_seconds"),
        gauges("The JVM's threads", threads="jvm_threads"),
    ),
    "Peers": (
        gauges("Sessions", sessions="sessions_open"),
        rates("Control links", opened="links_opened", lost="links_lost", refused="links_refused"),
        rates(
            "Refused peers", secret="secrets_different", version="versions_different", geometry="geometries_different"
        ),
        rates("Data paths", opened="paths_opened", lost="paths_lost", rejected="paths_rejected"),
        rates("Silence", missed="heartbeats_missed", lost="peers_silent"),
        rates("Damage", checksums="checksums_different", faults="faults_contained", frames="frames_invalid"),
    ),
}


def dashboard_file() -> str:
    """The JSON that Grafana imports."""
    made: list[dict[str, Any]] = []
    top = 0
    for title, panels in ROWS.items():
        made.append({"type": "row", "title": title, "collapsed": False, "gridPos": place(0, top, 24, 1), "panels": []})
        top += 1
        for index, panel in enumerate(panels):
            column, line = index % PANELS_A_ROW, index // PANELS_A_ROW
            made.append(drawn(panel, place(column * PANEL_WIDTH, top + line * PANEL_HEIGHT, PANEL_WIDTH, PANEL_HEIGHT)))
        top += -(-len(panels) // PANELS_A_ROW) * PANEL_HEIGHT
    for number, panel_json in enumerate(made, 1):
        panel_json["id"] = number
    return json.dumps(frame(made), indent=2) + "\n"


def place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def drawn(panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": described(panel),
        "datasource": SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": f"{legend} {{{{instance}}}}" if "by (instance)" in query else legend,
            }
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def described(panel: Panel) -> str:
    known = metrics()
    names = {name: known[name].sentence for query in panel.queries.values() for name in sorted(names_in(query))}
    return "\n".join(f"{name}: {sentence}" for name, sentence in names.items())


def frame(panels: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything around the panels: two variables, the data source and the messengers to look at."""
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "instance",
            "type": "query",
            "label": "Messenger",
            "datasource": SOURCE,
            "query": "label_values(kv_messenger_sessions_open, instance)",
            "includeAll": True,
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
            "refresh": 2,
        },
    ]
    return {
        "uid": "kv-messenger",
        "title": "KV Messenger",
        "description": "Made by dashboards/generate.py; edit dashboards/dashboard.py, not this file.",
        "tags": ["kv-messenger"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }
