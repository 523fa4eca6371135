package io.kvmessenger.messenger.prefill;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.messenger.decode.FetchSources;
import io.kvmessenger.messenger.session.ProtocolState;
import io.kvmessenger.messenger.session.Session;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** The tables of states in docs/protocol.md are the transitions that the code allows. */
class ProtocolStatesTest {
    private static final Path PAGE = Path.of("../../docs/protocol.md");

    @Test
    void shouldAllowWhatTheTableOfSessionsShows() throws IOException {
        assertThat(allowed(Session.State.values())).isEqualTo(table("A session, "));
    }

    @Test
    void shouldAllowWhatTheTableOfSourcesShows() throws IOException {
        assertThat(allowed(FetchSources.states())).isEqualTo(table("A fetch, "));
    }

    @Test
    void shouldAllowWhatTheTableOfPrefillsShows() throws IOException {
        assertThat(allowed(Prefill.State.values())).isEqualTo(table("A prefill, "));
    }

    @Test
    void shouldAllowWhatTheTableOfDeliveriesShows() throws IOException {
        assertThat(allowed(Delivery.State.values())).isEqualTo(table("A delivery, "));
    }

    @Test
    void shouldRefuseAnyOtherTransition() {
        assertThatThrownBy(() -> ProtocolState.change(Delivery.State.SENT, Delivery.State.STOPPED))
                .isInstanceOf(IllegalStateException.class)
                .hasMessageContaining("STOPPED cannot follow SENT");
    }

    private static Map<String, Set<String>> allowed(ProtocolState<?>[] states) {
        Map<String, Set<String>> allowed = new TreeMap<>();
        for (ProtocolState<?> state : states) {
            Set<String> next = new TreeSet<>();
            state.next().forEach(one -> next.add(one.toString()));
            if (!next.isEmpty()) {
                allowed.put(state.toString(), next);
            }
        }
        return allowed;
    }

    /** The first table behind the line that begins so: a row without a state belongs to the one above it. */
    private static Map<String, Set<String>> table(String lineBefore) throws IOException {
        List<String> rows = Files.readAllLines(PAGE).stream()
                .dropWhile(line -> !line.startsWith(lineBefore))
                .dropWhile(line -> !line.startsWith("|"))
                .takeWhile(line -> line.startsWith("|"))
                .skip(2)
                .toList();
        Map<String, Set<String>> next = new TreeMap<>();
        String state = "";
        for (String row : rows) {
            List<String> cells = Stream.of(row.split("\\|")).map(String::strip).toList();
            state = cells.get(1).isEmpty() ? state : cells.get(1);
            next.computeIfAbsent(state, unknown -> new TreeSet<>()).add(cells.getLast());
        }
        return next;
    }
}
