package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A name with several addresses, of which a peer listens on one: every address is tried, within one limit. */
@Timeout(900)
class ManyAddressesTest {
    private static final int PROMPT_TOKENS = 4;

    private static void fetch(EngineDouble decoder, String host, EngineDouble prefiller) {
        Map<String, Object> address =
                Map.of("host", host, "port", prefiller.opened.controlPort(), "engineId", prefiller.opened.engineId());
        decoder.submit(EngineDouble.fetchCommand("d", "t", List.of(address), PROMPT_TOKENS, 0, List.of(1)));
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "wrong-first.invalid",
                "right-first.invalid",
                "six-first.invalid",
                "four-first.invalid",
                "last-of-three.invalid"
            })
    void shouldReachThePeerAtWhicheverAddressItListens(String name) {
        try (EngineDouble prefiller = EngineDouble.of("prefiller");
                EngineDouble decoder = EngineDouble.of("decoder")) {
            fetch(decoder, name, prefiller);
            decoder.awaitCounter("kv_messenger_links_opened", 1);
        }
    }

    @Test
    void shouldNameEachAddressWithItsReason() {
        try (EngineDouble prefiller = EngineDouble.of("prefiller");
                EngineDouble decoder = EngineDouble.of("decoder")) {
            fetch(decoder, "none.invalid", prefiller);
            assertThat((String) decoder.await("failed", "d").get("reason"))
                    .contains("prefiller none.invalid:" + prefiller.opened.controlPort() + " cannot be reached")
                    .contains("127.0.0.9: Connection refused; 127.0.0.8: Connection refused");
        }
    }

    private static InetAddress of(String literal) {
        return InetAddress.ofLiteral(literal);
    }

    /** The first of them may be one from which no answer ever comes. */
    @Test
    void shouldLeaveEachAddressItsShareOfTheLimit() {
        Dial dial = new Dial(1, "name", 7, List.of(of("192.0.2.1"), of("192.0.2.2"), of("::1")), 30_000);
        assertThat(dial.next()).isEqualTo(new InetSocketAddress(of("192.0.2.1"), 7));
        assertThat(dial.limitMillis(0)).isEqualTo(10_000);
        dial.refused("connection timed out");
        assertThat(dial.next()).isEqualTo(new InetSocketAddress(of("192.0.2.2"), 7));
        assertThat(dial.limitMillis(seconds(2)))
                .as("what the first has not used is there for the others")
                .isEqualTo(14_000);
        dial.refused("Connection refused");
        assertThat(dial.next()).isEqualTo(new InetSocketAddress(of("::1"), 7));
        assertThat(dial.limitMillis(seconds(31))).as("never none").isEqualTo(1);
        dial.refused("no route");
        assertThat(dial.hasNext()).isFalse();
        assertThat(dial.refusals())
                .isEqualTo("192.0.2.1: connection timed out; 192.0.2.2: Connection refused; 0:0:0:0:0:0:0:1: no route");
    }

    @Test
    void shouldNotRepeatAnAddressThatWasAskedFor() {
        Dial dial = new Dial(1, "192.0.2.1", 7, List.of(of("192.0.2.1")), 5);
        var unused = dial.next();
        assertThat(dial.limitMillis(0)).isEqualTo(5);
        dial.refused("Connection refused");
        assertThat(dial.refusals()).isEqualTo("Connection refused");
    }

    private static long seconds(long count) {
        return TimeUnit.SECONDS.toNanos(count);
    }
}
