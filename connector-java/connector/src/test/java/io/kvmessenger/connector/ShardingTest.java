package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.testkit.transfer.RdmaDevices;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Real messengers over real transports between sharded engines, a process for each messenger: bytes are compared. */
@Timeout(900)
class ShardingTest {
    private static final int PROMPT_TOKENS = 40; // two full pages and a half
    private static final int TRANSFERS_EACH = 3;

    /**
     * How one side's engine is sharded.
     *
     * @param dp engines that each serve requests of their own
     * @param messengers that share the ranks of an engine
     */
    private record Side(int tp, int pp, int dp, int messengers) {
        static Side tp(int tp) {
            return new Side(tp, 1, 1, 1);
        }

        Side withMessengers(int count) {
            return new Side(tp, pp, dp, count);
        }

        List<ShardedShape> shapes(String layout, int heads) {
            int ranksEach = tp * pp / messengers;
            List<ShardedShape> shapes = new ArrayList<>();
            for (int from = 0; from < tp * pp; from += ranksEach) {
                shapes.add(new ShardedShape(layout, heads, tp, pp, dp, from, from + ranksEach));
            }
            return shapes;
        }

        @Override
        public String toString() {
            return "TP " + tp + (pp > 1 ? " PP " + pp : "") + (dp > 1 ? " DP " + dp : "")
                    + (messengers > 1 ? " by " + messengers + " messengers" : "");
        }
    }

    private record Case(String layout, int heads, Side prefiller, Side decoder, String transport) {
        @Override
        public String toString() {
            return layout + ", " + heads + " heads, " + prefiller + " to " + decoder + ", " + transport;
        }
    }

    @AfterAll
    static void endProcesses() {
        ShardedProcess.endIdle();
    }

    static Stream<Case> cases() {
        return Stream.of("shm", "tcp")
                .flatMap(transport -> Stream.of(
                        new Case("HND", 8, Side.tp(4), Side.tp(1), transport),
                        new Case("HND", 8, Side.tp(1), Side.tp(4), transport),
                        new Case("HND", 8, Side.tp(8), Side.tp(2), transport),
                        new Case("NHD", 8, Side.tp(2), Side.tp(8), transport),
                        new Case("HND", 8, Side.tp(16), Side.tp(4), transport),
                        new Case("LATENT", 1, Side.tp(8), new Side(1, 1, 8, 1), transport),
                        new Case("HND", 8, new Side(1, 2, 1, 1), Side.tp(1), transport),
                        new Case("HND", 8, Side.tp(4).withMessengers(4), Side.tp(1), transport),
                        new Case("HND", 8, Side.tp(1), Side.tp(4).withMessengers(4), transport),
                        new Case(
                                "NHD",
                                8,
                                Side.tp(8).withMessengers(4),
                                Side.tp(2).withMessengers(2),
                                transport),
                        new Case(
                                "HND",
                                8,
                                Side.tp(16).withMessengers(2),
                                Side.tp(2).withMessengers(2),
                                transport),
                        new Case("LATENT", 1, Side.tp(8).withMessengers(2), new Side(1, 1, 2, 1), transport),
                        new Case("HND", 8, new Side(1, 2, 1, 2), Side.tp(1), transport)));
    }

    /** By the provider that the library prefers. */
    @Test
    void shouldBringEveryByteToItsRankOverLibfabric() throws IOException {
        try {
            new FfmLibFabric(FfmLibFabric.DEFAULT_NAME);
        } catch (UnsatisfiedLinkError e) {
            Assumptions.abort(e.getMessage() + ": examples/setup/find-libfabric finds one");
        }
        shouldBringEveryByteToItsRank(new Case("HND", 8, Side.tp(4), Side.tp(1), "libfabric"));
        shouldBringEveryByteToItsRank(new Case("NHD", 8, Side.tp(2), Side.tp(8), "libfabric"));
    }

    /** On the devices of {@code make test-rdma}. */
    @Test
    void shouldBringEveryByteToItsRankOverVerbs() throws IOException {
        RdmaDevices.assume();
        shouldBringEveryByteToItsRank(new Case("HND", 8, Side.tp(4), Side.tp(1), "verbs"));
        shouldBringEveryByteToItsRank(new Case("NHD", 8, Side.tp(2).withMessengers(2), Side.tp(8), "verbs"));
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("cases")
    void shouldBringEveryByteToItsRank(Case sides) throws IOException {
        List<ShardedProcess> processes = new ArrayList<>();
        try {
            List<ShardedProcess> prefiller = start(processes, "prefiller", sides, sides.prefiller);
            List<List<ShardedProcess>> decoders = new ArrayList<>();
            for (int i = 0; i < sides.decoder.dp; i++) {
                decoders.add(start(processes, "decoder", sides, sides.decoder));
            }
            processes.forEach(ShardedProcess::address);
            int transferCount = TRANSFERS_EACH * decoders.size();
            for (int i = 0; i < transferCount; i++) {
                move("t" + i, prefiller, decoders.get(i % decoders.size()), sides, i % 2 == 0);
            }
            assertThat(sentBytes(prefiller)).as("each byte left once").isEqualTo(transferCount * bytesToSend(sides));
        } finally {
            ShardedProcess.closeAll(processes);
        }
    }

    private static List<ShardedProcess> start(List<ShardedProcess> processes, String role, Case sides, Side side)
            throws IOException {
        List<ShardedProcess> engine = new ArrayList<>();
        for (ShardedShape shape : side.shapes(sides.layout, sides.heads)) {
            ShardedProcess process = ShardedProcess.open(role, sides.transport, shape);
            processes.add(process);
            engine.add(process);
        }
        return engine;
    }

    private static void move(
            String transfer,
            List<ShardedProcess> prefiller,
            List<ShardedProcess> decoder,
            Case sides,
            boolean decoderFirst)
            throws IOException {
        String prefill = "prefill " + transfer + " " + PROMPT_TOKENS + " 9,4,7";
        String addresses = prefiller.stream().map(ShardedProcess::address).collect(Collectors.joining(","));
        String fetch = "fetch " + transfer + " " + PROMPT_TOKENS + " 3,11,0 " + addresses;
        for (ShardedProcess process : decoderFirst ? decoder : prefiller) {
            process.report(decoderFirst ? fetch : prefill);
        }
        for (ShardedProcess process : decoderFirst ? prefiller : decoder) {
            process.report(decoderFirst ? prefill : fetch);
        }
        long equalBytes = 0;
        for (ShardedProcess process : decoder) {
            String answer = process.answer();
            assertThat(answer).as(sides + ", " + transfer).startsWith("equal ");
            equalBytes += Long.parseLong(answer.substring("equal ".length()));
        }
        assertThat(equalBytes).as(sides.toString()).isEqualTo(bytesOfDecoder(sides));
        for (ShardedProcess process : prefiller) {
            assertThat(process.answer()).as(sides + ", " + transfer).isEqualTo("released");
        }
    }

    private static long sentBytes(List<ShardedProcess> prefiller) throws IOException {
        long sum = 0;
        for (ShardedProcess process : prefiller) {
            process.report("sentBytes");
            sum += Long.parseLong(process.answer());
        }
        return sum;
    }

    /** The NHD cases cut each token, so that of their last page only the prompt's tokens leave. */
    private static long bytesToSend(Case sides) {
        long pageTokens = (long) Math.ceilDiv(PROMPT_TOKENS, ShardedShape.PAGE_TOKENS) * ShardedShape.PAGE_TOKENS;
        return sides.layout.equals("NHD") ? bytesOfDecoder(sides) * PROMPT_TOKENS / pageTokens : bytesOfDecoder(sides);
    }

    /** All pages of all ranks of one engine. */
    private static long bytesOfDecoder(Case sides) {
        long pages = Math.ceilDiv(PROMPT_TOKENS, ShardedShape.PAGE_TOKENS);
        return sides.decoder.shapes(sides.layout, sides.heads).stream()
                .mapToLong(shape -> pages * shape.rankCount() * shape.layersHeld() * shape.pageBytes())
                .sum();
    }
}
