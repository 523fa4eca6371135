package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What peers are told to dial is not what is listened on: names that only peers know, and ports of a relay. */
@Timeout(900)
class AdvertisedAddressTest {
    private static final int PROMPT_TOKENS = 40;
    private static final List<Integer> SOURCE_PAGES = List.of(9, 4, 17);
    private static final List<Integer> TARGET_PAGES = List.of(3, 30, 12);

    private static EngineDouble engine(String role, Map<String, Object> changes) {
        return new EngineDouble(role, changes, Map.of());
    }

    private static void move(EngineDouble p, EngineDouble d) {
        d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
        p.compute(1, "p1", "t1", PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
        d.await("arrived", "d1");
        for (int layer = 0; layer < EngineDouble.LAYER_COUNT; layer++) {
            for (int k = 0; k < TARGET_PAGES.size(); k++) {
                assertThat(d.holds(layer, TARGET_PAGES.get(k), EngineDouble.content("t1", layer, k)))
                        .isTrue();
            }
        }
    }

    /** Both sides advertise the name: the prefiller's control address, and the decoder's address for KV. */
    @ParameterizedTest
    @ValueSource(
            strings = {
                "wrong-first.invalid",
                "right-first.invalid",
                "six-first.invalid",
                "four-first.invalid",
                "last-of-three.invalid"
            })
    void shouldMoveKvToEnginesThatAreNamed(String name) {
        try (EngineDouble p = engine("prefiller", Map.of("advertiseHost", name));
                EngineDouble d = engine("decoder", Map.of("advertiseHost", name))) {
            assertThat(p.opened.controlHost()).as("handed on as it is").isEqualTo(name);
            move(p, d);
        }
    }

    @Test
    void shouldOpenUnderANameThatItDoesNotKnowItself() {
        try (EngineDouble p = engine("prefiller", Map.of("advertiseHost", SlowNames.LATE_HOST));
                EngineDouble d = engine("decoder", Map.of("advertiseHost", SlowNames.LATE_HOST))) {
            SlowNames.know("127.0.0.1");
            move(p, d);
        } finally {
            SlowNames.know();
        }
    }

    @Test
    void shouldNameEachAddressOfADecoderThatCannotBeReached() {
        try (EngineDouble p = EngineDouble.of("prefiller");
                EngineDouble d = engine("decoder", Map.of("advertiseHost", "none.invalid"))) {
            d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            p.compute(1, "p1", "t1", PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
            assertThat((String) d.await("failed", "d1").get("reason")).contains("(127.0.0.9)", "(127.0.0.8)");
        }
    }

    /** As behind NAT or a NodePort: what listens has other ports than peers dial. */
    @Test
    void shouldBeReachedThroughRelaysAtOtherPorts() throws IOException {
        try (ReservedPort controlPort = new ReservedPort();
                ReservedPort dataPort = new ReservedPort();
                PortRelay control = new PortRelay(controlPort.number());
                PortRelay data = new PortRelay(dataPort.number());
                EngineDouble p = engine(
                        "prefiller", Map.of("listenPort", controlPort.number(), "advertisePort", control.port()));
                EngineDouble d = engine(
                        "decoder", Map.of("dataPort", dataPort.number(), "advertiseDataPorts", List.of(data.port())))) {
            assertThat(p.opened.controlPort()).isEqualTo(control.port());
            move(p, d);
            assertThat(control.connections()).isEqualTo(1);
            assertThat(data.connections())
                    .as("its control socket, and one or two for data")
                    .isGreaterThan(1);
        }
    }

    @Test
    void shouldBeReachedThroughARelayForEachDataHost() throws IOException {
        Map<String, Object> options = new HashMap<>();
        options.put("dataHosts", List.of("127.0.0.1", "127.0.0.2"));
        try (ReservedPort dataPort = new ReservedPort("127.0.0.1", "127.0.0.2");
                PortRelay first = new PortRelay("127.0.0.1", dataPort.number());
                PortRelay second = new PortRelay("127.0.0.2", dataPort.number())) {
            options.put("dataPort", dataPort.number());
            options.put("advertiseDataPorts", List.of(first.port(), second.port()));
            try (EngineDouble p = EngineDouble.of("prefiller");
                    EngineDouble d = engine("decoder", options)) {
                move(p, d);
                assertThat(first.connections()).isGreaterThan(1);
                assertThat(second.connections()).isPositive();
            }
        }
    }
}
