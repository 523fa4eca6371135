"""The alert rules: what to be woken for, and where the remedy stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TROUBLESHOOTING = "docs/troubleshooting.md"
FAILED_FETCHES = 'kv_messenger_fetches_failed_total{reason!="abandoned"}'
"""A client that goes away is no failure of the transfer."""


@dataclass(frozen=True)
class Rule:
    """One rule. ``runbook`` is a heading of the troubleshooting page."""

    name: str
    query: str
    lasts: str
    severity: Literal["critical", "warning", "info"]
    summary: str
    runbook: str


def grew(name: str, within: str = "10m") -> str:
    return f"sum by (instance) (increase({name}[{within}])) > 0"


def ratio(part: str, whole: str, within: str) -> str:
    return f"sum by (instance) (rate({part}[{within}])) / sum by (instance) (rate({whole}[{within}]))"


RULES = (
    Rule(
        "KvMessengerDown",
        'up{job="kv-messenger"} == 0',
        "2m",
        "critical",
        "A messenger's metrics page does not answer.",
        "the-metrics-page-does-not-answer",
    ),
    Rule(
        "KvMessengerFetchesFail",
        f"{ratio(FAILED_FETCHES, 'kv_messenger_fetches_started_total', '5m')} > 0.01",
        "5m",
        "critical",
        "More than one fetch in a hundred ends without its KV, those aside that the engine gave up.",
        "requests-fail",
    ),
    Rule(
        "KvMessengerPullsFail",
        'sum by (instance) (rate(kv_messenger_pulls_ended_total{reason="failed"}[10m]))'
        ' / sum by (instance) (rate(kv_messenger_pulls_ended_total{reason=~"arrived|failed"}[10m])) > 0.05',
        "10m",
        "warning",
        "More than one pull in twenty fails: its prompt is computed after it has waited.",
        "pulls-fail",
    ),
    Rule(
        "KvMessengerPagesDamaged",
        grew("kv_messenger_checksums_different_total", "1h"),
        "0m",
        "critical",
        "Pages arrived damaged.",
        "pages-arrive-damaged",
    ),
    Rule(
        "KvMessengerKvDiffers",
        'sum by (instance) (increase(kv_messenger_last_tokens_compared_total{reason="different"}[1h])) > 0',
        "0m",
        "critical",
        "A prefiller computes another KV than its decoder: their settings or weights differ.",
        "a-prefiller-computes-another-kv",
    ),
    Rule(
        "KvMessengerFaultContained",
        grew("kv_messenger_faults_contained_total", "1h"),
        "0m",
        "warning",
        "A bug of the messenger ended a request or a control link.",
        "a-bug-was-contained",
    ),
    Rule(
        "KvMessengerSecretsDiffer",
        grew("kv_messenger_secrets_different_total"),
        "0m",
        "warning",
        "A peer did not prove the shared secret.",
        "a-peer-is-refused",
    ),
    Rule(
        "KvMessengerVersionsDiffer",
        grew("kv_messenger_versions_different_total"),
        "0m",
        "warning",
        "A peer speaks another protocol version.",
        "a-peer-is-refused",
    ),
    Rule(
        "KvMessengerGeometriesDiffer",
        grew("kv_messenger_geometries_different_total"),
        "0m",
        "warning",
        "A peer's model, dtype, page size or layout is another one.",
        "a-peer-is-refused",
    ),
    Rule(
        "KvMessengerPeersSilent",
        grew("kv_messenger_peers_silent_total"),
        "0m",
        "warning",
        "A peer was given up because it sent nothing.",
        "a-peer-falls-silent",
    ),
    Rule(
        "KvMessengerPagesQuarantined",
        "min by (instance) (min_over_time(kv_messenger_pages_quarantined[10m])) > 0",
        "0m",
        "warning",
        "Pages have been out of use for ten minutes because a peer may still write to them.",
        "pages-stay-out-of-use",
    ),
    Rule(
        "KvMessengerPrefillsExpire",
        grew("kv_messenger_prefills_expired_total"),
        "10m",
        "warning",
        "Prefills end without a decoder that asks for them.",
        "prefills-expire",
    ),
    Rule(
        "KvMessengerDataPathsLost",
        grew("kv_messenger_paths_lost_total"),
        "10m",
        "warning",
        "Data paths break again and again.",
        "data-paths-break",
    ),
    Rule(
        "KvMessengerLayersLeaveLate",
        f"{ratio('kv_messenger_layers_sent_early_total', 'kv_messenger_layers_sent_total', '15m')} < 0.5",
        "15m",
        "info",
        "Less than half of the layers leave while the forward pass still runs.",
        "transfers-are-slow",
    ),
    Rule(
        "KvMessengerEventsDropped",
        grew("kv_messenger_events_dropped_total"),
        "0m",
        "info",
        "The engine did not poll, so log lines or timelines are missing.",
        "log-lines-are-missing",
    ),
)


def rules_file() -> str:
    """The file for Prometheus, in YAML that needs no quoting but of queries."""
    lines = [
        "# Made by dashboards/generate.py; edit dashboards/alert_rules.py, not this file.",
        "# The queries take the messengers' pages to be scraped under the job name kv-messenger.",
        "groups:",
        "  - name: kv-messenger",
        "    rules:",
    ]
    for rule in RULES:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: '{rule.query}'",
            f"        for: {rule.lasts}",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f'          summary: "{rule.summary}"',
            f"          runbook: {TROUBLESHOOTING}#{rule.runbook}",
        ]
    return "\n".join(lines) + "\n"
