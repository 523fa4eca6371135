"""Writes the dashboards and alerts.yml anew: ``python3 dashboards/generate.py``."""

from __future__ import annotations

from pathlib import Path

from alert_rules import rules_file
from dashboard import DASHBOARDS, dashboard_file

HERE = Path(__file__).resolve().parent


def files() -> dict[str, str]:
    """What each file should hold."""
    return {f"{each.uid}.json": dashboard_file(each) for each in DASHBOARDS} | {"alerts.yml": rules_file()}


def main() -> None:
    for name, text in files().items():
        (HERE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
