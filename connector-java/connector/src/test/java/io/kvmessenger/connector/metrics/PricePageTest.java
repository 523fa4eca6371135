package io.kvmessenger.connector.metrics;

import static org.assertj.core.api.Assertions.assertThat;

import com.fasterxml.jackson.jr.ob.JSON;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.SourcePrice;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalDouble;
import java.util.Random;
import java.util.SequencedMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What a router gets that asks for a price, and that no query breaks the page. */
class PricePageTest {
    private static final String PEER = "10.0.0.7:14579";
    private static final long SECOND_NS = 1_000_000_000L;
    private static final long MILLI_NS = 1_000_000L;

    private long nowNs = 5 * SECOND_NS;
    private final PriceBoard board = new PriceBoard(() -> nowNs, 2);

    private static SourcePrice price(String source, long deadNs) {
        return new SourcePrice(
                source,
                deadNs,
                4 * MILLI_NS,
                3 * MILLI_NS,
                200 * MILLI_NS,
                10 * MILLI_NS,
                50_000,
                100,
                4_000,
                60 * SECOND_NS);
    }

    private void report(double computeNsPerToken, SourcePrice... prices) {
        board.put(new EngineCommand.Prices(List.of(prices), OptionalDouble.of(computeNsPerToken)));
    }

    private Map<String, Object> ask(String peer, int tokens) throws Exception {
        PricePage.Answer answer = PricePage.answer("peer=" + peer + "&tokens=" + tokens, board);
        assertThat(answer.problem()).isEmpty();
        return JSON.std.mapFrom(answer.body());
    }

    @Test
    void shouldAddUpTheParts() throws Exception {
        report(90_000, price("other:1", 0), price(PEER, 0));
        assertThat(ask(PEER, 1_000))
                .containsExactlyInAnyOrderEntriesOf(new HashMap<>(Map.of(
                        "peer", PEER,
                        "tokens", 1_000,
                        "known", true,
                        "dead", false,
                        "transfer_seconds", 0.267,
                        "open_seconds", 0.004,
                        "answer_seconds", 0.003,
                        "queue_seconds", 0.2,
                        "move_seconds", 0.06,
                        "compute_seconds", 0.09)));
    }

    @Test
    void shouldMoveNoTokensInNoTime() throws Exception {
        report(90_000, price(PEER, 0));
        assertThat(ask(PEER, 0)).containsEntry("move_seconds", 0.0).containsEntry("known", false);
    }

    @Test
    void shouldNameNoPriceWhereNoneIsKnown() throws Exception {
        assertThat(ask(PEER, 1_000)).containsOnlyKeys("peer", "tokens", "known").containsEntry("known", false);
        report(90_000);
        assertThat(ask(PEER, 1_000)).containsOnlyKeys("peer", "tokens", "known", "compute_seconds");
    }

    @ParameterizedTest
    @ValueSource(ints = {99, 100, 4_000, 4_001})
    void shouldSayForWhichSizesAPriceIsAGuess(int tokens) throws Exception {
        report(90_000, price(PEER, 0));
        assertThat(ask(PEER, tokens)).containsEntry("known", tokens >= 100 && tokens <= 4_000);
    }

    @Test
    void shouldBelieveAReportForAsLongAsItIsKnown() throws Exception {
        report(90_000, price(PEER, 2 * SECOND_NS));
        assertThat(ask(PEER, 1_000)).containsEntry("dead", true).containsEntry("queue_seconds", 0.2);
        nowNs += 5 * SECOND_NS;
        assertThat(ask(PEER, 1_000))
                .containsEntry("dead", false)
                .containsEntry("queue_seconds", 0.0)
                .containsEntry("transfer_seconds", 0.067)
                .containsEntry("known", true);
        nowNs += 55 * SECOND_NS;
        assertThat(ask(PEER, 1_000)).containsEntry("known", false);
    }

    @Test
    void shouldHaveGaugesOfTheEnginesUsedLast() {
        report(90_000, price("first:1", 0), price("b:2", 0), price("[fd00::7]:3", 0));
        Map<String, Double> gauges = new HashMap<>();
        board.read(gauges::put);
        assertThat(gauges)
                .containsOnly(Map.entry("own", 0.09), Map.entry("b:2", 0.267), Map.entry("[fd00::7]:3", 0.267));
        new PriceBoard(() -> nowNs, 0).read((source, value) -> {
            throw new AssertionError(source);
        });
    }

    /** Any report, as often as its sources are repeated: one gauge a source, its last price, and none of those gone. */
    @ParameterizedTest
    @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
    void shouldHaveOneGaugeOfASourceThatIsThere(long seed) {
        Random random = new Random(seed);
        for (int turn = 0; turn < 200; turn++) {
            PriceBoard many = new PriceBoard(() -> nowNs, 3);
            SequencedMap<String, SourcePrice> lastOnes = new LinkedHashMap<>();
            List<SourcePrice> reported = new ArrayList<>();
            for (int count = random.nextInt(12); count > 0; count--) {
                SourcePrice price = price(
                        random.nextInt(8) == 0 ? PriceBoard.OWN : "h:" + (1 + random.nextInt(5)),
                        random.nextInt(3) * SECOND_NS,
                        random.nextInt(4) * SECOND_NS,
                        random.nextInt(1_000_000));
                reported.add(price);
                lastOnes.putLast(price.source(), price);
            }
            many.put(new EngineCommand.Prices(reported, OptionalDouble.of(90_000)));
            long ageNs = random.nextInt(3) * SECOND_NS;
            nowNs += ageNs;
            List<String> sources = new ArrayList<>();
            many.read((source, seconds) -> {
                sources.add(source);
                if (!source.equals(PriceBoard.OWN)) {
                    assertThat(seconds).isEqualTo(lastOnes.get(source).totalNs(1_000, ageNs) / 1e9);
                }
            });
            List<String> there = lastOnes.values().stream()
                    .filter(price -> price.knownNs() > ageNs && price.deadNs() <= ageNs)
                    .map(SourcePrice::source)
                    .filter(source -> !source.equals(PriceBoard.OWN))
                    .toList();
            List<String> expected = new ArrayList<>(there.subList(Math.max(0, there.size() - 3), there.size()));
            expected.addFirst(PriceBoard.OWN);
            assertThat(sources).isEqualTo(expected);
        }
    }

    private static SourcePrice price(String source, long deadNs, long knownNs, double nsPerToken) {
        return new SourcePrice(source, deadNs, 0, 0, 0, 0, nsPerToken, 2_000, 4_000, knownNs);
    }

    @ParameterizedTest
    @ValueSource(strings = {"10.0.0.7:14579", "host-1.example:1", "[fd00::7]:65535", "[fe80::1%eth0]:9", "a:00080"})
    void shouldTakeAnyAddressOfAMessenger(String peer) throws Exception {
        report(90_000, price(peer, 0));
        String encoded = URLEncoder.encode(peer, StandardCharsets.UTF_8);
        assertThat(ask(encoded, 7)).containsEntry("peer", peer).containsKey("transfer_seconds");
        assertThat(PricePage.answer("&tokens=7&&peer=" + encoded + "&", board).problem())
                .isEmpty();
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "",
                "10.0.0.7",
                ":1",
                "a:",
                "a:0",
                "a:65536",
                "a:999999",
                "a:-1",
                "a:+1",
                "a:1x",
                "a:1,b:2",
                "http://a:1",
                "fd00::7:1",
                "[fd00::7]",
                "[x]:1",
                "a b:1",
                "a\n:1",
                "a:\u0661"
            })
    void shouldRefuseWhatIsNoAddress(String peer) {
        assertRefused("tokens=1&peer=" + URLEncoder.encode(peer, StandardCharsets.UTF_8), "peer is '");
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "",
                "-1",
                "+1",
                "1.0",
                "1e3",
                "0x1",
                "2147483648",
                "9999999999",
                "99999999999999999999",
                "\u0661",
                "NaN"
            })
    void shouldRefuseWhatIsNoNumberOfTokens(String tokens) {
        assertRefused("peer=a:1&tokens=" + URLEncoder.encode(tokens, StandardCharsets.UTF_8), "tokens is '");
    }

    @Test
    void shouldRefuseWhatIsMissingTwiceOrUnknown() {
        assertRefused("", "peer is missing, expected HOST:PORT");
        assertRefused("tokens=1", "peer is missing, expected HOST:PORT");
        assertRefused("peer=a:1", "tokens is missing, expected an integer from 0 to 2147483647");
        assertRefused("peer=a:1&peer=a:1&tokens=1", "peer is given twice, expected it once");
        assertRefused("peer=a:1&tokens=1&tokens=2", "tokens is given twice, expected it once");
        assertRefused("peer=a:1&tokens=1&Tokens=2", "an option is 'Tokens', expected peer or tokens");
        assertRefused("peer=a:1&tokens=%4", "the query is '%4', expected percent signs before two hex digits");
        assertRefused("peer", "peer is ''");
    }

    @ParameterizedTest
    @ValueSource(longs = {1, 2, 3, 4, 5, 6, 7, 8})
    void shouldAnswerAnyQueryWithASentenceOrAPrice(long seed) throws Exception {
        report(90_000, price(PEER, 0));
        Random random = new Random(seed);
        List<String> parts = List.of(
                "peer",
                "tokens",
                "=",
                "&",
                "=",
                "&",
                PEER,
                "7",
                "%",
                "%41",
                "%zz",
                "+",
                "?",
                "#",
                "[",
                "]",
                ":",
                "\u00ff",
                "\0",
                "x".repeat(300));
        for (int turn = 0; turn < 2_000; turn++) {
            List<String> query = new ArrayList<>();
            int length = random.nextInt(12);
            for (int index = 0; index < length; index++) {
                query.add(parts.get(random.nextInt(parts.size())));
            }
            String text = String.join("", query);
            PricePage.Answer answer = PricePage.answer(text, board);
            if (answer.problem().isEmpty()) {
                assertThat(JSON.std.mapFrom(answer.body())).containsKeys("peer", "tokens", "known");
            } else {
                assertSentence(answer.problem());
            }
        }
    }

    private void assertRefused(String query, String expected) {
        PricePage.Answer answer = PricePage.answer(query, board);
        assertThat(answer.body()).isEmpty();
        assertThat(answer.problem()).startsWith(expected);
        assertSentence(answer.problem());
    }

    private static void assertSentence(String problem) {
        assertThat(problem)
                .matches("[\\x20-\\x7e]{30,300}")
                .contains(" is ")
                .contains(", expected ")
                .endsWith(": ask for /price?peer=10.0.0.7:14579&tokens=2048");
    }
}
