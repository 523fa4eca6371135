package io.kvmessenger.testkit.sim;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.testkit.sim.check.AllowedEnds;
import io.kvmessenger.testkit.sim.check.FetchEnd;
import io.kvmessenger.testkit.sim.check.PrefillEnd;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

class ProtocolPageTest {
    private static final Path PAGE = Path.of("../../docs/protocol.md");

    @Test
    void shouldShowTheTableOfEndsThatTheCheckerUses() throws IOException {
        List<String> lines = Files.readAllLines(PAGE);
        int header = lines.indexOf("| prefill \\ fetch | ARRIVED | FAILED | CANCELLED | DIED | ABSENT |");
        assertThat(header).as("the table's header in docs/protocol.md").isPositive();
        Map<PrefillEnd, Set<FetchEnd>> onPage = new EnumMap<>(PrefillEnd.class);
        for (String line : lines.subList(header + 2, header + 2 + PrefillEnd.values().length)) {
            List<String> cells =
                    Stream.of(line.split("\\|", -1)).map(String::strip).toList();
            Set<FetchEnd> allowed = EnumSet.noneOf(FetchEnd.class);
            int column = 2;
            for (FetchEnd end : FetchEnd.values()) {
                if (cells.get(column++).equals("yes")) {
                    allowed.add(end);
                }
            }
            onPage.put(PrefillEnd.valueOf(cells.get(1)), allowed);
        }
        for (PrefillEnd end : PrefillEnd.values()) {
            assertThat(onPage.get(end)).as(end.name()).isEqualTo(AllowedEnds.with(end));
        }
    }
}
