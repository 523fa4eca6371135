package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.connector.boot.RefusedException;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Two whole messengers in one process, driven as engines drive them: by JSON, with real sockets between them. */
@Timeout(900)
class TwoMessengersTest {
    private static final int PROMPT_TOKENS = 40; // two full pages and a half
    private static final List<Integer> SOURCE_PAGES = List.of(9, 4, 17);
    private static final List<Integer> TARGET_PAGES = List.of(3, 30, 12);

    @Test
    void shouldMovePagesLayerByLayerWhenTheGrantComesFirst() {
        try (EngineDouble p = EngineDouble.of("prefiller");
                EngineDouble d = EngineDouble.of("decoder")) {
            d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            p.compute(1, "p1", "t1", PROMPT_TOKENS, 0, 32, List.of(9, 4), SOURCE_PAGES);
            p.compute(2, "p1", "t1", PROMPT_TOKENS, 32, 40, List.of(17), SOURCE_PAGES);
            d.await("arrived", "d1");
            assertArrived(d, "t1", 0);
            finish(p, "p1");
            assertClean(p, d);
        }
    }

    @Test
    void shouldMovePagesWhenThePrefillWasOverBeforeTheGrantCame() {
        try (EngineDouble p = EngineDouble.of("prefiller");
                EngineDouble d = EngineDouble.of("decoder")) {
            p.compute(1, "p1", "t1", PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
            p.submit(Map.of("do", "prefillEnded", "request", "p1", "outcome", "finished"));
            d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            d.await("arrived", "d1");
            assertArrived(d, "t1", 0);
            p.await("released", "p1");
            assertClean(p, d);
        }
    }

    @Test
    void shouldSendOnlyWhatTheDecoderLacks() {
        try (EngineDouble p = EngineDouble.of("prefiller");
                EngineDouble d = EngineDouble.of("decoder")) {
            d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 16, TARGET_PAGES.subList(1, 3));
            p.compute(1, "p1", "t1", PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
            assertThat(d.await("arrived", "d1")).containsEntry("pages", 2);
            assertArrived(d, "t1", 1);
            assertThat(d.holds(0, TARGET_PAGES.getFirst(), (byte) 0)).isTrue();
            finish(p, "p1");
            assertClean(p, d);
        }
    }

    @Test
    void shouldSendPagesOfThePrefillersPrefixCacheWithoutWaitingForALayer() {
        try (EngineDouble p = EngineDouble.of("prefiller");
                EngineDouble d = EngineDouble.of("decoder")) {
            p.compute(1, "p0", "t1", 32, 0, 32, List.of(9, 4), SOURCE_PAGES);
            p.submit(Map.of("do", "prefillEnded", "request", "p0", "outcome", "aborted"));
            p.await("released", "p0");
            d.fetch("d1", "t2", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            p.fillPages("t2", SOURCE_PAGES);
            p.beginStep(2, "p1", "t2", PROMPT_TOKENS, 32, 40, SOURCE_PAGES);
            p.endStep(2);
            d.await("arrived", "d1");
            assertArrived(d, "t2", 0);
            finish(p, "p1");
            assertClean(p, d);
        }
    }

    @Test
    void shouldNotifyTheDecoderWhenThePrefillIsAborted() {
        try (EngineDouble p = EngineDouble.of("prefiller");
                EngineDouble d = EngineDouble.of("decoder")) {
            d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            p.compute(1, "p1", "t1", PROMPT_TOKENS, 0, 32, List.of(9, 4), SOURCE_PAGES);
            p.submit(Map.of("do", "prefillEnded", "request", "p1", "outcome", "aborted"));
            assertThat(d.await("failed", "d1").get("reason").toString()).contains("ABORTED");
            p.await("released", "p1");
            assertClean(p, d);
        }
    }

    @Test
    void shouldReleaseAPrefillAtOnceWhenItsDecoderDeclines() {
        try (EngineDouble p = EngineDouble.of("prefiller");
                EngineDouble d = EngineDouble.of("decoder")) {
            p.compute(1, "p1", "t1", PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
            p.submit(Map.of("do", "prefillEnded", "request", "p1", "outcome", "finished"));
            decline(d, "t1", p);
            p.await("released", "p1");
            decline(d, "t2", p); // before the prefill begins
            d.fetch("d3", "t3", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES); // comes behind the decline
            p.awaitGauge("kv_messenger_grants_waiting", 1);
            p.compute(2, "p2", "t2", PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
            finish(p, "p2");
        }
    }

    @Test
    void shouldShowAnOpenFetchInItsGaugeAtOnce() {
        try (EngineDouble p = EngineDouble.of("prefiller");
                EngineDouble d = EngineDouble.of("decoder")) {
            d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            d.awaitGauge("kv_messenger_fetches_open", 1);
            d.awaitGauge("kv_messenger_windows_open", 1);
            p.awaitGauge("kv_messenger_grants_waiting", 1);
        }
    }

    @Test
    void shouldEndAnAbandonedFetchOnceThePrefillerHasConfirmed() {
        try (EngineDouble p = EngineDouble.of("prefiller");
                EngineDouble d = EngineDouble.of("decoder")) {
            d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            d.submit(Map.of("do", "abandon", "request", "d1"));
            assertThat(d.await("failed", "d1").get("reason").toString()).contains("gave the request up");
            p.compute(1, "p1", "t1", PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
            assertThat(d.clean()).isTrue();
        }
    }

    @Test
    void shouldGoOnAfterAForwardPassThatNeverEnded() {
        try (EngineDouble p = EngineDouble.of("prefiller");
                EngineDouble d = EngineDouble.of("decoder")) {
            d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            p.beginStep(1, "p1", "t1", PROMPT_TOKENS, 0, 40, SOURCE_PAGES);
            p.submit(Map.of("do", "prefillEnded", "request", "p1", "outcome", "failed"));
            d.await("failed", "d1");
            p.await("released", "p1");
            d.fetch("d2", "t2", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            p.compute(2, "p2", "t2", PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
            d.await("arrived", "d2");
            assertArrived(d, "t2", 0);
            finish(p, "p2");
            assertClean(p, d);
        }
    }

    @Test
    void shouldFailAtOnceWhenNobodyListens() {
        try (ReservedPort reserved = new ReservedPort();
                EngineDouble d = EngineDouble.of("decoder")) {
            int deadPort = reserved.number();
            var absent = new io.kvmessenger.connector.boot.OpenResult(1, "", "", "127.0.0.1", deadPort, "", 0, 0);
            d.fetch("d1", "t1", absent, PROMPT_TOKENS, 0, TARGET_PAGES);
            assertThat(d.await("failed", "d1").get("reason").toString())
                    .isEqualTo("prefiller 127.0.0.1:" + deadPort
                            + " cannot be reached: Connection refused; start it, or look"
                            + " at its listen_host, listen_port and advertise_host");
            assertThat(d.clean()).isTrue();
        }
    }

    @Test
    void shouldNameWhatDiffersBetweenTheTwoSides() {
        Map<String, Object> bfloat16 =
                EngineDouble.group("bfloat16", 4, EngineDouble.PAGE_TOKENS, "HND", 4, EngineDouble.PAGE_COUNT);
        try (EngineDouble p = EngineDouble.of("prefiller");
                EngineDouble model = new EngineDouble("decoder", Map.of(), Map.of("model", "other@2"));
                EngineDouble dtype = new EngineDouble("decoder", Map.of(), Map.of("groups", List.of(bfloat16)));
                EngineDouble secret = new EngineDouble("decoder", Map.of("sharedSecret", "wrong"), Map.of())) {
            assertThat(refusal(p, model)).contains("model").contains("other@2").contains("tiny@1");
            assertThat(refusal(p, dtype)).contains("dtype").contains("bfloat16").contains("float32");
            assertThat(refusal(p, secret)).contains("shared_secret");
            assertThat(p.clean()).isTrue();
        }
    }

    @Test
    void shouldSayWhichPortIsInUse() {
        try (EngineDouble p = EngineDouble.of("prefiller")) {
            int port = p.opened.controlPort();
            assertThatThrownBy(() -> new EngineDouble("prefiller", Map.of("listenPort", port), Map.of()).close())
                    .isInstanceOf(RefusedException.class)
                    .hasMessageContaining("listen_port " + port);
        }
    }

    @Test
    void shouldFailTheFetchWhenThePrefillerGoesAway() {
        try (EngineDouble d = EngineDouble.of("decoder")) {
            EngineDouble p = EngineDouble.of("prefiller");
            d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            p.compute(1, "p1", "t1", PROMPT_TOKENS, 0, 32, List.of(9, 4), SOURCE_PAGES);
            p.close();
            d.await("failed", "d1");
            assertThat(d.clean()).isTrue();
        }
    }

    @Test
    void shouldNotifyWaitingDecodersThatThePrefillerIsShuttingDown() {
        try (EngineDouble d = EngineDouble.of("decoder")) {
            EngineDouble p = EngineDouble.of("prefiller");
            d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            d.fetch("d2", "t2", p.opened, PROMPT_TOKENS, 0, List.of(4, 5, 6));
            p.compute(1, "p1", "t1", PROMPT_TOKENS, 0, 32, List.of(9, 4), SOURCE_PAGES);
            p.awaitGauge("kv_messenger_grants_waiting", 1);
            p.close();
            for (String request : List.of("d1", "d2")) {
                assertThat(d.await("failed", request)).containsEntry("reason", "test-prefiller is shutting down");
            }
            assertThat(d.clean()).isTrue();
        }
    }

    @Test
    void shouldFreeThePrefillersPagesWhenTheDecoderShutsDown() {
        try (EngineDouble p = EngineDouble.of("prefiller")) {
            EngineDouble d = EngineDouble.of("decoder");
            d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            p.compute(1, "p1", "t1", PROMPT_TOKENS, 0, 32, List.of(9, 4), SOURCE_PAGES);
            d.awaitGauge("kv_messenger_windows_open", 1);
            d.close();
            p.submit(Map.of("do", "prefillEnded", "request", "p1", "outcome", "finished"));
            p.await("released", "p1");
            p.awaitGauge("kv_messenger_sessions_open", 0);
            assertClean(p);
        }
    }

    @Test
    void shouldGoOnWithAPrefillerThatHasRestartedAtTheSameAddress() {
        try (ReservedPort port = new ReservedPort();
                EngineDouble d = EngineDouble.of("decoder")) {
            Map<String, Object> samePort = Map.of("listenPort", port.number());
            EngineDouble first = new EngineDouble("prefiller", samePort, Map.of());
            d.fetch("d1", "t1", first.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
            first.compute(1, "p1", "t1", PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
            d.await("arrived", "d1");
            first.close();
            try (EngineDouble second = new EngineDouble("prefiller", samePort, Map.of())) {
                d.awaitGauge("kv_messenger_sessions_open", 0); // the first one's end has been heard
                d.fetch("d2", "t2", first.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
                second.compute(1, "p2", "t2", PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
                d.await("arrived", "d2");
                assertArrived(d, "t2", 0);
                finish(second, "p2");
                assertClean(second, d);
            }
        }
    }

    private static String refusal(EngineDouble p, EngineDouble d) {
        d.fetch("d1", "t1", p.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
        return d.await("failed", "d1").get("reason").toString();
    }

    private static void decline(EngineDouble d, String transfer, EngineDouble p) {
        d.submit(Map.of(
                "do",
                "decline",
                "transfer",
                transfer,
                "prefillers",
                List.of(Map.of("host", p.opened.controlHost(), "port", p.opened.controlPort()))));
    }

    private static void finish(EngineDouble p, String request) {
        p.submit(Map.of("do", "prefillEnded", "request", request, "outcome", "finished"));
        p.await("released", request);
    }

    private static void assertArrived(EngineDouble d, String transfer, int fromPage) {
        for (int layer = 0; layer < EngineDouble.LAYER_COUNT; layer++) {
            for (int k = fromPage; k < TARGET_PAGES.size(); k++) {
                assertThat(d.holds(layer, TARGET_PAGES.get(k), EngineDouble.content(transfer, layer, k)))
                        .as("layer %d page %d", layer, k)
                        .isTrue();
            }
        }
    }

    private static void assertClean(EngineDouble... engines) {
        for (EngineDouble engine : engines) {
            assertThat(engine.clean()).as(engine.held()).isTrue();
        }
    }
}
