from __future__ import annotations

from pathlib import Path

from metrics_table import metrics_table

import kv_connector.metrics.table


def test_should_say_of_each_figure_what_its_page_says() -> None:
    made = Path(kv_connector.metrics.table.__file__).read_text()
    assert made == metrics_table(), "stale: run python tests/metrics_table.py > kv_connector/metrics/table.py"
    assert len(kv_connector.metrics.table.COUNTERS) > 30
    assert len(kv_connector.metrics.table.GAUGES) > 5
    assert len(kv_connector.metrics.table.HISTOGRAMS) > 5
    assert "time_limit" in kv_connector.metrics.table.REASONS["fetches_failed"]
    assert kv_connector.metrics.table.BUCKET_BOUNDS_SECONDS[0] == 0.000_05
    assert kv_connector.metrics.table.BUCKET_BOUNDS_SECONDS[-1] > 300
