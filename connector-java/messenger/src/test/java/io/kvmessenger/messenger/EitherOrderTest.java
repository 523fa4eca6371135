package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.messenger.TransferEvent.Leg;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Every pair of events about one transfer that may come in either order, in both orders. Whichever comes first, each
 * side ends once, at once or by a limit that has a name, nothing stays held, and the ends are the same unless the pair
 * is one of those for which docs/protocol.md says why they differ. {@code -Dkvmessenger.rewriteDocs=true} writes its
 * table anew.
 */
class EitherOrderTest extends TransferStory {
    private static final Path PAGE = Path.of("../../docs/protocol.md");
    private static final String BEGIN = "<!-- either-order -->\n";
    private static final String END = "<!-- /either-order -->\n";

    /** Two events whose order is free. */
    record Pair(TransferEvent one, TransferEvent other) {
        boolean has(TransferEvent event) {
            return one == event || other == event;
        }

        @Override
        public String toString() {
            return one + " and " + other;
        }
    }

    /** Why the order of two events may matter. */
    private enum Why {
        LIMIT("limit"),
        LINK("link"),
        NAME("name"),
        LEFT("left");

        private final String word;

        Why(String word) {
            this.word = word;
        }

        /** The reason that a pair may have; null if it has none. */
        static Why of(Pair pair) {
            if (pair.has(TransferEvent.UNHEARD)
                    || pair.has(TransferEvent.FETCH_EXPIRED)
                    || pair.has(TransferEvent.PREFILL_EXPIRED)) {
                return LIMIT;
            }
            if (pair.has(TransferEvent.LINK_LOST)) {
                return LINK;
            }
            if (pair.has(TransferEvent.WEIGHTS_CHANGED)) {
                return NAME;
            }
            return pair.has(TransferEvent.ENDED) && pair.has(TransferEvent.CANCELLED) ? LEFT : null;
        }
    }

    /** What else may differ between two stories of one pair. */
    private record Setting(Engines engines, boolean writesLate, boolean otherFirst, Rest rest) {}

    /** When a leg that the pair does not touch happens. */
    private enum Rest {
        NEVER,
        BEFORE,
        AFTER
    }

    static List<Pair> pairs() {
        List<Pair> pairs = new ArrayList<>();
        for (TransferEvent one : TransferEvent.values()) {
            for (TransferEvent other : TransferEvent.values()) {
                if (one.compareTo(other) < 0 && one.orderIsFreeWith(other)) {
                    pairs.add(new Pair(one, other));
                }
            }
        }
        return pairs;
    }

    private static List<Setting> settings() {
        List<Setting> settings = new ArrayList<>();
        for (Engines engines : Engines.values()) {
            for (Rest rest : Rest.values()) {
                for (int bits = 0; bits < 4; bits++) {
                    settings.add(new Setting(engines, (bits & 1) > 0, (bits & 2) > 0, rest));
                }
            }
        }
        return settings;
    }

    @ParameterizedTest
    @MethodSource("pairs")
    void shouldEndTheSameWhicheverOfTwoEventsComesFirst(Pair pair) {
        if (orderMatters(pair)) {
            assertThat(Why.of(pair)).as("the order of %s matters", pair).isNotNull();
        }
    }

    @Test
    void shouldShowWhoseOrderIsFreeAndWhoseMatters() throws IOException {
        int events = TransferEvent.values().length;
        System.out.printf(
                "%d pairs of events in both orders, %d stories; of %d pairs the order is fixed%n",
                pairs().size(), 2 * pairs().size() * settings().size(), events * (events - 1) / 2 - pairs().size());
        String page = Files.readString(PAGE);
        int from = page.indexOf(BEGIN) + BEGIN.length();
        String expected = page.substring(0, from) + table() + page.substring(page.indexOf(END));
        if (Boolean.getBoolean("kvmessenger.rewriteDocs")) {
            Files.writeString(PAGE, expected);
        }
        assertThat(Files.readString(PAGE))
                .as("docs/protocol.md is stale: run mvn test -pl connector-java/messenger -am -Dtest=EitherOrderTest"
                        + " -Dsurefire.failIfNoSpecifiedTests=false -Dkvmessenger.rewriteDocs=true")
                .isEqualTo(expected);
    }

    private String table() {
        Set<Pair> matter = new TreeSet<>((a, b) -> a.toString().compareTo(b.toString()));
        pairs().stream().filter(this::orderMatters).forEach(matter::add);
        String rows = Arrays.stream(TransferEvent.values())
                .map(event -> "| " + event + " | " + event.meaning + " | " + fixed(event) + " | "
                        + mattering(event, matter) + " |\n")
                .collect(Collectors.joining());
        return "| event | means | the order is fixed with | the order matters with |\n|---|---|---|---|\n" + rows;
    }

    private static String fixed(TransferEvent event) {
        return Arrays.stream(TransferEvent.values())
                .filter(other -> other != event && !event.orderIsFreeWith(other))
                .map(TransferEvent::name)
                .collect(Collectors.joining(", "));
    }

    private static String mattering(TransferEvent event, Set<Pair> matter) {
        return Arrays.stream(TransferEvent.values())
                .flatMap(other -> Stream.of(new Pair(event, other), new Pair(other, event)))
                .filter(matter::contains)
                .map(pair -> (pair.one() == event ? pair.other() : pair.one()) + " (" + Why.of(pair).word + ")")
                .collect(Collectors.joining(", "));
    }

    private boolean orderMatters(Pair pair) {
        boolean matters = false;
        for (Setting setting : settings()) {
            Ends one = play(setting, pair.one(), pair.other(), setting.otherFirst());
            Ends other = play(setting, pair.other(), pair.one(), !setting.otherFirst());
            matters |= !one.equals(other);
            if (Why.of(pair) == null) {
                assertThat(other)
                        .as("%s, %s: %s before it", pair, setting, pair.other())
                        .isEqualTo(one);
            }
        }
        return matters;
    }

    /** @param secondsLegFirst whether the leg of the second event is ahead of the other's where it does not matter */
    private Ends play(Setting setting, TransferEvent first, TransferEvent second, boolean secondsLegFirst) {
        TransferEvent ahead = secondsLegFirst ? second : first;
        TransferEvent behind = secondsLegFirst ? first : second;
        List<TransferEvent> rest = Stream.of(Leg.PREFILL, Leg.DECODE)
                .filter(leg -> first.leg != leg && second.leg != leg)
                .flatMap(leg -> TransferEvent.whole(leg).stream())
                .toList();
        List<TransferEvent> events = new ArrayList<>(setting.rest() == Rest.BEFORE ? rest : List.of());
        events.addAll(ahead.before());
        events.addAll(behind.before());
        events.add(first);
        events.add(second);
        events.addAll(ahead.after());
        events.addAll(behind.after());
        events.addAll(setting.rest() == Rest.AFTER ? rest : List.of());
        return play(setting.engines(), setting.writesLate(), events);
    }
}
