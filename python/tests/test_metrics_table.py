from __future__ import annotations

from pathlib import Path

from metrics_table import metrics_table

import kv_connector._metrics


def test_should_say_of_each_figure_what_its_page_says() -> None:
    made = Path(kv_connector._metrics.__file__).read_text()
    assert made == metrics_table(), "stale: run python tests/metrics_table.py > kv_connector/_metrics.py"
    assert len(kv_connector._metrics.COUNTERS) > 30
    assert len(kv_connector._metrics.GAUGES) > 5
    assert len(kv_connector._metrics.HISTOGRAMS) > 5
    assert "time_limit" in kv_connector._metrics.REASONS["fetches_failed"]
    assert kv_connector._metrics.BUCKET_BOUNDS_SECONDS[0] == 0.000_05
    assert kv_connector._metrics.BUCKET_BOUNDS_SECONDS[-1] > 300
