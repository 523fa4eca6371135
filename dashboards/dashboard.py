"""The Grafana dashboards: rows, panels and queries; each panel says what its figures count, in the enum's words."""

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


def quantiles(title: str, name: str) -> Panel:
    bucket = f"kv_messenger_{name}_bucket"
    return Panel(title, "s", {f"p{100 * of:g}": quantile(bucket, of) for of in (0.5, 0.9, 0.99)})


def by(label: str, title: str, name: str, unit: str = "cps") -> Panel:
    """A counter that is told apart by a label, of all messengers together."""
    query = f'sum by ({label}) (rate(kv_messenger_{name}_total{{instance=~"$instance"}}[{WINDOW}]))'
    return Panel(title, unit, {f"{{{{{label}}}}}": query})


def to_each_peer(title: str, name: str, unit: str) -> Panel:
    """A gauge of each peer, of each messenger that writes to it."""
    query = f'sum by (instance, peer) (kv_messenger_{name}{{instance=~"$instance"}})'
    return Panel(f"{title} (metrics_peers)", unit, {"{{peer}} from {{instance}}": query})


def from_each_source(title: str, name: str, unit: str) -> Panel:
    """A gauge of each engine that tokens are pulled from, of each messenger that pulls."""
    query = f'max by (instance, source) (kv_messenger_{name}{{instance=~"$instance"}})'
    return Panel(f"{title} (metrics_peers)", unit, {"{{source}} to {{instance}}": query})


def mean(name: str) -> str:
    of = f'{{instance=~"$instance"}}[{WINDOW}]'
    return f"sum(rate(kv_messenger_{name}_sum{of})) / sum(rate(kv_messenger_{name}_count{of}))"


@dataclass(frozen=True)
class Dashboard:
    """One page, for one question."""

    uid: str
    title: str
    rows: dict[str, tuple[Panel, ...]]


OPERATOR = Dashboard(
    "kv-messenger-operator",
    "KV Messenger: does it work",
    {
        "Requests": (
            rates("Fetches", started="fetches_started", arrived="fetches_arrived", failed="fetches_failed"),
            rates("Prefills", started="prefills_started", sent="prefills_sent", undelivered="prefills_undelivered"),
            rates("Prefills that nothing asked for", expired="prefills_expired", declined="grants_declined"),
            by("reason", "Why fetches fail", "fetches_failed"),
            by("reason", "Why prefills are not delivered", "prefills_undelivered"),
            quantiles("From the end of the forward pass to the last write", "prefill_tail_seconds"),
        ),
        "Peers": (
            gauges("Sessions", sessions="sessions_open"),
            rates(
                "Control links", opened="links_opened", lost="links_lost", idle="links_idled", refused="links_refused"
            ),
            rates(
                "Refused peers",
                secret="secrets_different",
                version="versions_different",
                geometry="geometries_different",
            ),
            by("transport", "Data paths that broke", "paths_lost"),
            rates("Silence", missed="heartbeats_missed", lost="peers_silent"),
            by("reason", "Last tokens compared with the decoder's own", "last_tokens_compared"),
            rates("Fetches refused because the prefiller computes another KV", refused="fetches_refuted"),
            gauges("Difference to the decoder's own KV, in millionths", largest="last_token_difference_millionths"),
            to_each_peer("The same, by prefiller", "peer_last_token_difference_millionths", "short"),
            rates("Damage", checksums="checksums_different", faults="faults_contained", frames="frames_invalid"),
            by("peer", "Fetches that failed, by prefiller (metrics_peers)", "peer_fetches_failed"),
            by("peer", "Writes that failed, by decoder (metrics_peers)", "peer_writes_failed"),
        ),
        "Pulls": (
            by("reason", "What came of requests that may pull", "pulls_ended"),
            by("reason", "Answers of the engines that were asked", "asks_answered"),
            by("reason", "Answers to engines that ask", "offers_made"),
            rates("Prompt tokens pulled", pulled="tokens_pulled"),
            quantiles("From a question to its answer", "ask_seconds"),
            quantiles("From a pull's pages to its arrival", "pull_seconds"),
        ),
        "What is held": (
            gauges("Open", fetches="fetches_open", prefills="prefills_open", grants="grants_waiting"),
            gauges("Under way", writes="writes_in_flight", windows="windows_open"),
            gauges("Pages out of use", quarantined="pages_quarantined"),
            gauges("Pages kept for other engines", offered="pages_offered"),
        ),
    },
)

CAPACITY = Dashboard(
    "kv-messenger-capacity",
    "KV Messenger: how much it moves",
    {
        "Traffic": (
            rates("KV sent and received", "Bps", sent="sent_bytes", received="received_bytes"),
            by("transport", "Sent, by transport", "transport_sent_bytes", "Bps"),
            by("transport", "Writes, by transport", "transport_writes_sent"),
            rates("Writes saved and repeated", saved="transport_writes_saved", again="transport_writes_repeated"),
            rates("Runs copied by a GPU's kernel", runs="transport_runs_by_kernel"),
            rates("Waiting for a queue", writes="back_pressured", transports="transport_back_pressured"),
        ),
        "To each decoder": (
            by("peer", "Sent (metrics_peers)", "peer_sent_bytes", "Bps"),
            to_each_peer("Queued", "peer_queued_bytes", "bytes"),
            to_each_peer("Rate while there is something to send", "peer_send_rate_bytes", "Bps"),
            to_each_peer("How long what is queued takes", "peer_queue_seconds", "s"),
        ),
        "From each engine": (from_each_source("Time that 1,000 tokens take", "price_seconds", "s"),),
        "The JVM": (
            gauges("Heap", "bytes", used="jvm_heap_used_bytes", limit="jvm_heap_max_bytes"),
            rates("Share of the time that it collects garbage", "percentunit", collecting="jvm_gc_seconds"),
            gauges("Threads", threads="jvm_threads"),
            gauges("Memory regions", regions="regions_open"),
        ),
    },
)

TRANSFER = Dashboard(
    "kv-messenger-transfer",
    "KV Messenger: where a transfer's time goes",
    {
        "One after the other": (
            quantiles("To connect", "connect_seconds"),
            quantiles("From the engine's fetch to its grant", "grant_delay_seconds"),
            quantiles("Grants wait for their prompt", "grant_queued_seconds"),
            quantiles("From grant and prompt to the first write", "first_write_seconds"),
            quantiles("From the end of the forward pass to the last write", "prefill_tail_seconds"),
            quantiles("From the last write to the engine's poll", "ready_poll_seconds"),
        ),
        "In all": (
            quantiles("From the engine's fetch to the last write", "fetch_seconds"),
            Panel(
                "The mean of each part",
                "s",
                {
                    "grant": mean("grant_delay_seconds"),
                    "queue": mean("grant_queued_seconds"),
                    "first write": mean("first_write_seconds"),
                    "tail": mean("prefill_tail_seconds"),
                    "poll": mean("ready_poll_seconds"),
                },
            ),
            Panel(
                "Share of layers that left during their forward pass",
                "percentunit",
                {"early": f"{rate('kv_messenger_layers_sent_early_total')} / {rate('kv_messenger_layers_sent_total')}"},
            ),
        ),
    },
)

DASHBOARDS = (OPERATOR, CAPACITY, TRANSFER)


def dashboard_file(of: Dashboard) -> str:
    """The JSON that Grafana imports."""
    made: list[dict[str, Any]] = []
    top = 0
    for title, panels in of.rows.items():
        made.append({"type": "row", "title": title, "collapsed": False, "gridPos": place(0, top, 24, 1), "panels": []})
        top += 1
        for index, panel in enumerate(panels):
            column, line = index % PANELS_A_ROW, index // PANELS_A_ROW
            made.append(drawn(panel, place(column * PANEL_WIDTH, top + line * PANEL_HEIGHT, PANEL_WIDTH, PANEL_HEIGHT)))
        top += -(-len(panels) // PANELS_A_ROW) * PANEL_HEIGHT
    for number, panel_json in enumerate(made, 1):
        panel_json["id"] = number
    return json.dumps(frame(of, made), indent=2) + "\n"


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


def frame(of: Dashboard, panels: list[dict[str, Any]]) -> dict[str, Any]:
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
        "uid": of.uid,
        "title": of.title,
        "description": "Made by dashboards/generate.py; edit dashboards/dashboard.py, not this file.",
        "tags": ["kv-messenger"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "title": "KV Messenger",
                "tags": ["kv-messenger"],
                "asDropdown": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": variables},
        "panels": panels,
    }
