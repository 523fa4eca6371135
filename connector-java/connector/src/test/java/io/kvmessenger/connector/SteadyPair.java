package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;

/**
 * A prefiller and a decoder that go on transferring, on a thread of their own, while unproven peers disturb one of them. Every
 * byte of every transfer is compared; pages that no transfer names must stay empty.
 */
final class SteadyPair implements AutoCloseable {
    /** Prompts {@code fuzz-0}, … are computed in between and wait for a while for a grant. */
    static final int FUZZED_TRANSFER_COUNT = 8;

    private static final long LOOK_PERIOD_NS = 1_000_000;
    private static final int PROMPT_TOKENS = 40;
    private static final List<Integer> SOURCE_PAGES = List.of(9, 4, 17);
    private static final List<Integer> FUZZED_PAGES = List.of(40, 41, 42);
    private static final List<Integer> TARGET_PAGES = List.of(3, 30, 12);

    final EngineDouble prefiller;
    final EngineDouble decoder;
    private final Thread transferring;
    private volatile boolean stopping;
    private volatile Throwable failure;
    private volatile int transferCount;
    private long step;

    SteadyPair(Map<String, Object> prefillerOptions, Map<String, Object> decoderOptions) {
        prefiller = new EngineDouble("prefiller", prefillerOptions, Map.of());
        decoder = new EngineDouble("decoder", decoderOptions, Map.of());
        connect(); // the session is up before anything can disturb it
        transfer(0);
        transferring = Thread.ofPlatform().daemon().name("steady-pair").start(this::run);
    }

    /** A busy machine may need more for the handshake than a test lets its prefiller wait: then the next fetch dials. */
    private void connect() {
        prefiller.compute(++step, "up", "up", PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
        prefiller.submit(Map.of("do", "prefillEnded", "request", "up", "outcome", "finished"));
        for (int attempt = 0; !arrives("up" + attempt); attempt++) {}
        prefiller.await("released", "up");
    }

    private boolean arrives(String request) {
        decoder.fetch(request, "up", prefiller.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
        return "arrived".equals(decoder.awaitEnd(request).get("event"));
    }

    int transferCount() {
        return transferCount;
    }

    /** Ends the transfers; throws what was wrong with any of them. */
    void stop() {
        stopping = true;
        try {
            transferring.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        if (failure != null) {
            throw new AssertionError("transfer " + transferCount + " of the undisturbed pair went wrong", failure);
        }
    }

    /** Waits for one more transfer, unless one has gone wrong. */
    void awaitTransfer() {
        int before = transferCount;
        while (transferCount == before && failure == null) {
            LockSupport.parkNanos(LOOK_PERIOD_NS);
        }
    }

    /** Ends the transfers: all went right, nothing is held, and the process has what it had before. */
    void assertUnharmed(Footprint before) {
        awaitTransfer();
        stop();
        prefiller.awaitGauge("kv_messenger_prefills_open", 0);
        for (EngineDouble engine : List.of(prefiller, decoder)) {
            engine.awaitGauge("kv_messenger_sessions_open", 1);
            assertThat(engine.clean()).as(engine.held()).isTrue();
            assertThat(bugs(engine)).isEmpty();
        }
        before.assertBack();
    }

    private static List<Object> bugs(EngineDouble engine) {
        return engine.events().stream()
                .map(event -> event.getOrDefault("message", ""))
                .filter(message -> message.toString().contains("a bug"))
                .toList();
    }

    @Override
    public void close() {
        stopping = true;
        try {
            transferring.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        prefiller.close();
        decoder.close();
    }

    private void run() {
        try {
            int round = 0;
            while (!stopping) {
                transfer(round + 1);
                endForFuzzer(round - FUZZED_TRANSFER_COUNT);
                computeForFuzzer(round);
                transferCount = ++round;
            }
            for (int late = round - FUZZED_TRANSFER_COUNT; late < round; late++) {
                endForFuzzer(late);
            }
        } catch (Throwable wrong) {
            failure = wrong;
        }
    }

    private void transfer(int index) {
        String transfer = "steady-" + index;
        decoder.fetch("d" + index, transfer, prefiller.opened, PROMPT_TOKENS, 0, TARGET_PAGES);
        prefiller.compute(++step, "p" + index, transfer, PROMPT_TOKENS, 0, 40, SOURCE_PAGES, SOURCE_PAGES);
        prefiller.submit(Map.of("do", "prefillEnded", "request", "p" + index, "outcome", "finished"));
        decoder.await("arrived", "d" + index);
        prefiller.await("released", "p" + index);
        for (int layer = 0; layer < EngineDouble.LAYER_COUNT; layer++) {
            for (int k = 0; k < TARGET_PAGES.size(); k++) {
                assertThat(decoder.holds(layer, TARGET_PAGES.get(k), EngineDouble.content(transfer, layer, k)))
                        .as("transfer %s layer %d page %d", transfer, layer, k)
                        .isTrue();
            }
            for (int page = 0; page < EngineDouble.PAGE_COUNT; page++) {
                assertThat(TARGET_PAGES.contains(page) || decoder.holds(layer, page, (byte) 0))
                        .as("page %d of layer %d was granted to no prefiller", page, layer)
                        .isTrue();
            }
        }
    }

    private void computeForFuzzer(int index) {
        String request = "f" + index;
        String transfer = "fuzz-" + index % FUZZED_TRANSFER_COUNT;
        prefiller.compute(++step, request, transfer, PROMPT_TOKENS, 0, 40, FUZZED_PAGES, FUZZED_PAGES);
    }

    private void endForFuzzer(int index) {
        if (index >= 0) {
            String request = "f" + index;
            prefiller.submit(Map.of("do", "prefillEnded", "request", request, "outcome", "aborted"));
            prefiller.await("released", request);
        }
    }
}
