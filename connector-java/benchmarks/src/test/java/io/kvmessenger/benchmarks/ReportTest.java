package io.kvmessenger.benchmarks;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.Map;
import org.junit.jupiter.api.Test;

class ReportTest {
    private static final KvPerfOptions OPTIONS = KvPerfOptions.parse(
            new String[] {"--page-bytes", "1000", "--page-count", "1000", "--check", "--yardstick"});

    @Test
    void shouldReportMediansAndThePairedRatio() {
        Report report = new Report(OPTIONS);
        report.add(new Initiator.Round(1_000_000, 500_000, 0.0, 0, 0, new long[] {1000, 2000}), yardstick(500_000));
        report.add(new Initiator.Round(2_000_000, 500_000, 0.0, 0, 0, new long[] {3000, 4000}), yardstick(2_000_000));
        report.add(new Initiator.Round(4_000_000, 500_000, 0.0, 0, 0, new long[] {5000, 9000}), yardstick(8_000_000));
        Map<String, Object> figures = report.figures();
        assertThat(figures)
                .containsEntry("gbPerSecond", 0.5)
                .containsEntry("opsPerSecond", 500_000L)
                .containsEntry("p50Us", 3.0)
                .containsEntry("p99Us", 9.0)
                .containsEntry("cpuSecondsPerGb", 0.5)
                .containsEntry("yardstickGbPerSecond", 0.5)
                .containsEntry("ratio", 1.0);
    }

    @Test
    void shouldCountOnlyCleanRoundsWhenThereAreEnough() {
        KvPerfOptions alone = KvPerfOptions.parse(new String[] {"--page-bytes", "1000", "--page-count", "1000"});
        Report report = new Report(alone);
        report.add(new Initiator.Round(9_000_000, 500_000, 0.5, 0, 0, new long[] {1}));
        assertThat(report.figures()).containsEntry("gbPerSecond", 0.111).containsEntry("cleanRounds", 0);
        for (int i = 0; i < Report.CLEAN_ROUNDS_MIN; i++) {
            report.add(new Initiator.Round(1_000_000, 500_000, 0.05, 0, 0, new long[] {1}));
        }
        assertThat(report.figures())
                .containsEntry("gbPerSecondMin", 1.0)
                .containsEntry("cleanRounds", Report.CLEAN_ROUNDS_MIN)
                .containsEntry("rounds", 1 + Report.CLEAN_ROUNDS_MIN);
    }

    private static Yardstick.Round yardstick(long durationNs) {
        return new Yardstick.Round(durationNs, durationNs, 0.0);
    }

    @Test
    void shouldBeginTheLineWithTheKeysEveryRunHas() {
        Report report = new Report(
                KvPerfOptions.parse(new String[] {"--page-bytes", "1000", "--page-count", "1000", "--check"}));
        report.add(new Initiator.Round(1_000_000, 500_000, 0.0, 0, 0, new long[] {1000}));
        assertThat(Report.json(report.figures()))
                .startsWith("{\"transport\": \"shm\", \"op\": \"paged\", \"pageBytes\": 1000, \"pageCount\": 1000,"
                        + " \"inFlight\": 16, \"gbPerSecond\": 1.0, \"opsPerSecond\": 1000000, \"p50Us\": 1.0,"
                        + " \"p99Us\": 1.0, \"cpuSecondsPerGb\": 0.5, \"checked\": true, ")
                .endsWith("}");
    }

    @Test
    void shouldCountBothWaysOfPings() {
        KvPerfOptions pings =
                KvPerfOptions.parse(new String[] {"--op", "pingpong", "--page-bytes", "1000", "--page-count", "1000"});
        Report report = new Report(pings);
        report.add(new Initiator.Round(1_000_000, 500_000, 0.0, 0, 0, new long[] {1000}));
        assertThat(report.figures()).containsEntry("gbPerSecond", 2.0).containsEntry("opsPerSecond", 2_000_000L);
    }
}
