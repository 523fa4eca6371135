package io.kvmessenger.benchmarks;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;

/** Makes the table in docs/sharding.md; {@code -Dkvmessenger.rewriteDocs=true} writes it anew. */
class PlanCountsTest {
    private static final Path PAGE = Path.of("../../docs/sharding.md");
    private static final String BEGIN = "<!-- plan-counts -->\n";
    private static final String END = "<!-- /plan-counts -->\n";

    @Test
    void shouldKeepTheTableOfWritesUpToDate() throws IOException {
        String page = Files.readString(PAGE);
        int from = page.indexOf(BEGIN) + BEGIN.length();
        int to = page.indexOf(END);
        String expected = page.substring(0, from) + PlanCounts.table() + page.substring(to);
        if (Boolean.getBoolean("kvmessenger.rewriteDocs")) {
            Files.writeString(PAGE, expected);
        }
        assertThat(Files.readString(PAGE))
                .as("docs/sharding.md is stale: run mvn test -pl connector-java/benchmarks -am -Dtest=PlanCountsTest"
                        + " -Dsurefire.failIfNoSpecifiedTests=false -Dkvmessenger.rewriteDocs=true")
                .isEqualTo(expected);
    }
}
