package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.connector.FrameMutator.Mutated;
import io.kvmessenger.connector.boot.OpenResult;
import io.kvmessenger.messenger.wire.Cancel;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.ControlFrame.BodyCase;
import io.kvmessenger.messenger.wire.Goodbye;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * Mutated frames against whole messengers, one at a time on a link that was in order until then, while a real pair goes
 * on transferring through the same messengers.
 */
@Timeout(1200)
class ControlFuzzTest {
    /** {@code -Dfuzz.frames=100000}: how many mutated frames the prefiller gets; the decoder gets a tenth of it. */
    private static final int FRAME_COUNT = Integer.getInteger("fuzz.frames", 2_000);

    private static final long SEED = Long.getLong("fuzz.seed", 1);
    private static final long PROBE = Long.MAX_VALUE;

    @Test
    void shouldSurviveMutatedFramesOfADecoder() throws IOException {
        RecordingProxy recorded = record();
        try (SteadyPair pair = new SteadyPair(Map.of(), Map.of());
                SilentListener data = new SilentListener()) {
            List<ControlFrame> conversation = data.insteadOfDataSocketsIn(recorded.ofDecoder);
            FrameMutator mutator = new FrameMutator(SEED, conversation);
            Footprint before = Footprint.now();
            long beganNs = System.nanoTime();
            int survived = 0;
            for (int i = 0; i < FRAME_COUNT; i++) {
                survived += mutateOneOfDecoder(mutator, conversation, pair.prefiller.opened) ? 1 : 0;
            }
            report(FRAME_COUNT, "a prefiller", survived, beganNs, pair);
            data.stop();
            pair.assertUnharmed(before);
        }
    }

    @Test
    void shouldSurviveMutatedFramesOfAPrefiller() throws IOException {
        RecordingProxy recorded = record();
        FrameMutator mutator = new FrameMutator(SEED, recorded.ofPrefiller);
        try (SteadyPair pair = new SteadyPair(Map.of(), Map.of());
                ServerSocket listener = new ServerSocket(0, 16, InetAddress.getLoopbackAddress())) {
            Footprint before = Footprint.now();
            long beganNs = System.nanoTime();
            for (int i = 0; i < FRAME_COUNT / 10; i++) {
                mutateOneOfPrefiller(mutator, recorded.ofPrefiller, pair.decoder, listener, i);
            }
            report(FRAME_COUNT / 10, "a decoder", 0, beganNs, pair);
            pair.assertUnharmed(before);
        }
    }

    /**
     * A conversation as real messengers have it: a transfer, a cancel, an abort, a question for a cached prefix, a
     * decline, an end.
     */
    private static RecordingProxy record() throws IOException {
        List<Integer> pages = List.of(5, 6, 7);
        EngineDouble p = EngineDouble.of("prefiller");
        try (RecordingProxy proxy = new RecordingProxy(p.opened.controlPort());
                EngineDouble d = EngineDouble.of("decoder")) {
            OpenResult via = at(proxy.port());
            d.fetch("d1", "fuzz-1", via, 40, 0, pages);
            p.compute(1, "p1", "fuzz-1", 40, 0, 40, pages, pages);
            d.await("arrived", "d1");
            d.fetch("d2", "fuzz-2", via, 40, 16, pages.subList(1, 3));
            d.awaitGauge("kv_messenger_windows_open", 1);
            d.submit(Map.of("do", "abandon", "request", "d2"));
            d.await("failed", "d2");
            d.fetch("d3", "fuzz-3", via, 40, 0, pages);
            p.beginStep(2, "p3", "fuzz-3", 40, 0, 40, pages);
            p.submit(Map.of("do", "prefillEnded", "request", "p3", "outcome", "aborted"));
            d.await("failed", "d3");
            d.submit(Map.of(
                    "do",
                    "ask",
                    "request",
                    "d5",
                    "transfer",
                    "fuzz-5",
                    "promptDigest",
                    "ab",
                    "prefillers",
                    List.of(Map.of("host", "127.0.0.1", "port", proxy.port())),
                    "promptTokenIds",
                    List.of(1, 2, 3),
                    "limitMillis",
                    3_600_000));
            d.await("offered", "d5");
            d.decline("fuzz-4", proxy.port());
            p.compute(3, "p4", "fuzz-4", 40, 0, 40, pages, pages);
            p.submit(Map.of("do", "prefillEnded", "request", "p4", "outcome", "finished"));
            p.await("released", "p4");
            p.close();
            d.awaitGauge("kv_messenger_sessions_open", 0);
            proxy.ofPrefiller.add(ControlFrame.newBuilder() // its own one may be lost with the link
                    .setGoodbye(Goodbye.newBuilder().setSentence("going"))
                    .build());
            assertThat(proxy.ofDecoder.stream().map(ControlFrame::getBodyCase))
                    .contains(BodyCase.HELLO, BodyCase.ATTACH, BodyCase.GRANT, BodyCase.CANCEL, BodyCase.DECLINE)
                    .contains(BodyCase.ASK);
            assertThat(proxy.ofPrefiller.stream().map(ControlFrame::getBodyCase))
                    .contains(BodyCase.CHALLENGE, BodyCase.WELCOME, BodyCase.CANNOT_DELIVER)
                    .contains(BodyCase.CANCEL_CONFIRMED, BodyCase.OFFER);
            return proxy;
        }
    }

    private static OpenResult at(int port) {
        return new OpenResult(1, "", "", "127.0.0.1", port, "", 0, 0);
    }

    /** Says a valid conversation up to one frame, and that one mutated. Returns whether the link outlived it. */
    private static boolean mutateOneOfDecoder(FrameMutator mutator, List<ControlFrame> recorded, OpenResult target) {
        int at = mutator.below(recorded.size());
        Mutated mutated = mutator.mutate(recorded.get(at));
        try (ControlSocket link = ControlSocket.dial(target.controlPort())) {
            for (int i = 0; i < at; i++) {
                BodyCase kind = recorded.get(i).getBodyCase();
                if (kind == BodyCase.HELLO || kind == BodyCase.ATTACH || mutator.below(4) == 0) {
                    link.send(recorded.get(i));
                }
            }
            link.send(mutated.bytes());
            if (!mutated.framed() || at < 2) {
                link.awaitClosed(); // no answer can be told from the one to the frames before
                return false;
            }
            link.send(ControlFrame.newBuilder()
                    .setCancel(Cancel.newBuilder().setTransferId("probe").setGrantId(PROBE))
                    .build());
            return answersProbe(link);
        }
    }

    private static boolean answersProbe(ControlSocket link) {
        for (Optional<ControlFrame> frame = link.read(); frame.isPresent(); frame = link.read()) {
            if (frame.get().getCancelConfirmed().getGrantId() == PROBE) {
                return true;
            }
        }
        return false;
    }

    /** Lets a real decoder dial, says a valid conversation up to one frame, and that one mutated. */
    private static void mutateOneOfPrefiller(
            FrameMutator mutator, List<ControlFrame> recorded, EngineDouble decoder, ServerSocket listener, int index) {
        String request = "fuzzed-" + index;
        decoder.fetch(request, "fuzz-" + index % 8, at(listener.getLocalPort()), 40, 0, List.of(50, 51, 52));
        int at = mutator.below(recorded.size());
        Mutated mutated = mutator.mutate(recorded.get(at));
        try (ControlSocket link = ControlSocket.accept(listener)) {
            for (int i = 0; i < at; i++) {
                BodyCase kind = recorded.get(i).getBodyCase();
                if (kind == BodyCase.CHALLENGE || kind == BodyCase.WELCOME || mutator.below(4) == 0) {
                    link.send(recorded.get(i));
                }
            }
            link.send(mutated.bytes());
            link.awaitClosed();
        }
        decoder.await("failed", request);
    }

    private static void report(int frames, String side, int survived, long beganNs, SteadyPair pair) {
        System.out.printf(
                "%d mutated frames to %s (seed %d) in %d s: %d links outlived theirs; %d transfers beside them%n",
                frames, side, SEED, (System.nanoTime() - beganNs) / 1_000_000_000, survived, pair.transferCount());
    }
}
