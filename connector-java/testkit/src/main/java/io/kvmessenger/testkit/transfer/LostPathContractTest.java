package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferCounters;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.tcp.TcpTransport;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * Requirements on a transport with data sockets of its own when they break: a broken socket costs time and nothing
 * else.
 *
 * <p>Run at length by {@code make lost-paths}: then a socket breaks every 100 ms in every other second, and the speed
 * of a second peer is compared between these seconds and the others.
 */
@Timeout(900)
public abstract class LostPathContractTest {
    private static final int PAGE_BYTES = 16 << 10;
    private static final int PAGE_COUNT = 256;
    protected static final long MEMORY_BYTES = (long) PAGE_BYTES * PAGE_COUNT;
    private static final byte GUARD = 0x5A;
    private static final int STREAMS = 2;
    /** The writer's sockets to one peer: the control stream and the data paths. */
    private static final int SOCKETS = 1 + STREAMS;

    private static final int BREAKS_MIN = 60;
    /** One in this many checks breaks a socket. */
    private static final int BREAK_ODDS = 20;

    private static final long BREAK_INTERVAL_NS = 100_000_000L;
    private static final long LONG_RUN_NS = TimeUnit.SECONDS.toNanos(Long.getLong("kvmessenger.paths.seconds", 0));
    private static final double SPEED_SHARE_MIN = 0.9;
    private static final int SWALLOWED_ROUNDS = 10;
    private static final long SHORT_LIMIT_NS = 3_000_000_000L;

    private final BreakingLibC breaking = new BreakingLibC();
    private final BreakingLibC breakingTarget = new BreakingLibC();
    private final long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
    private final Random random = new Random(seed);
    private DrivenEngine writer;
    private DrivenEngine target;
    private Admission admission;
    private Peer peer;
    /** The writer's handle of the last granted window. */
    private RemoteWindow remote;

    private List<Integer> controlSocket;
    private int breaks;
    private long roundsRun;
    private long lookedNs;

    protected abstract String transport();

    protected TransferOptions options() {
        return TransferOptions.defaults().withTransports(transport()).with(TcpTransport.STREAMS_PER_PEER, STREAMS);
    }

    /** An engine with a region of {@link #MEMORY_BYTES}. */
    protected DrivenEngine open(TransferOptions options, String name, LibC libC) {
        return new DrivenEngine(options, name, MEMORY_BYTES, libC);
    }

    @BeforeEach
    void connect() {
        System.out.println("seed " + seed + ", the same again by -Dkvmessenger.test.seed=" + seed);
        connect(options());
    }

    private void connect(TransferOptions options) {
        writer = open(options, "writer", breaking.libC());
        target = open(options(), "target", breakingTarget.libC());
        writer.alongside(target);
        target.alongside(writer);
        do { // a connection that needs longer than a short limit is tried again: that is the machine's fault
            writer.lost.clear();
            admission = target.engine().admit("writer");
            peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
            writer.await(
                    "the peer to be ready", () -> writer.ready.contains(peer) || writer.lost.containsKey(peer.id()));
        } while (isLostForWantOfTime());
        controlSocket = breaking.spare(0, 1);
        breakingTarget.spare(0, 1);
        target.memory().fill(GUARD);
    }

    private boolean isLostForWantOfTime() {
        if (writer.ready.contains(peer)) {
            return false;
        }
        assertThat(writer.lost.get(peer.id()).detail()).contains(" in time");
        target.engine().revoke(admission);
        target.await("the end of the admission", () -> target.closedAdmissions.containsKey(admission.id()));
        target.closedAdmissions.clear();
        return true;
    }

    @AfterEach
    void close() {
        writer.close();
        target.close();
    }

    /** The writer's C library. */
    BreakingLibC breaking() {
        return breaking;
    }

    DrivenEngine writer() {
        return writer;
    }

    /** Opens both engines anew, with these options at the writer. */
    void reconnect(TransferOptions options) {
        close();
        connect(options);
    }

    /** Several rounds, while {@code meanwhile} happens. */
    void rounds(int count, Runnable meanwhile) {
        for (int i = 0; i < count; i++) {
            round(PAGE_COUNT * roundsRun++, meanwhile);
        }
    }

    private static PageList list(int... indices) {
        return new PageList(indices, 0, indices.length, PAGE_BYTES, 0);
    }

    private PagedWrites write(DrivenEngine at, RemoteWindow window, int[] sources, int[] targets) {
        return new PagedWrites(
                writer.region(), list(sources), at.region().descriptor(), list(targets), PAGE_BYTES, window, 1);
    }

    private int[] draw(int count) {
        int[] indices = IntStream.range(0, PAGE_COUNT).toArray();
        for (int i = indices.length - 1; i > 0; i--) {
            int j = random.nextInt(i + 1);
            int swap = indices[i];
            indices[i] = indices[j];
            indices[j] = swap;
        }
        return Arrays.copyOf(indices, count);
    }

    /** Writes some pages into a window of their own, while {@code meanwhile} happens; then verifies the target. */
    private void round(long cookie, Runnable meanwhile) {
        byte[] bytes = new byte[(int) MEMORY_BYTES];
        random.nextBytes(bytes);
        MemorySegment.copy(bytes, 0, writer.memory(), ValueLayout.JAVA_BYTE, 0, bytes.length);
        int[] from = draw(1 + random.nextInt(PAGE_COUNT));
        int[] to = draw(from.length);
        ImmWindow window = grant(to, from.length, cookie);
        int pieces = 0;
        for (int done = 0; done < from.length; pieces++) {
            int end = Math.min(from.length, done + 1 + random.nextInt(40));
            writer.submit(
                    peer,
                    write(target, remote, Arrays.copyOfRange(from, done, end), Arrays.copyOfRange(to, done, end)),
                    cookie + pieces);
            meanwhile.run();
            done = end;
        }
        int piecesMade = pieces;
        DrivenEngine.awaitBoth("round " + cookie, writer, target, () -> {
            meanwhile.run();
            return target.filled.contains(cookie) && allEnded(cookie, piecesMade);
        });
        check(from, to);
        assertThat(window.arrivedWeight()).isEqualTo(from.length);
        writer.engine().disallow(peer, remote);
        window.close(true);
        target.memory().fill(GUARD);
    }

    private boolean allEnded(long firstCookie, int count) {
        for (long cookie = firstCookie; cookie < firstCookie + count; cookie++) {
            if (!writer.endings.containsKey(cookie)) {
                return false;
            }
        }
        return true;
    }

    private ImmWindow grant(int[] pages, long expectedWeight, long cookie) {
        WindowRanges ranges = WindowRanges.ofEqual(
                IntStream.of(pages).mapToLong(i -> (long) i * PAGE_BYTES).toArray(), PAGE_BYTES);
        ImmWindow window = target.openWindow(admission, ranges, expectedWeight, cookie);
        remote = writer.engine()
                .allow(peer, window.imm(), WindowArea.of(target.region().descriptor(), ranges));
        return window;
    }

    private void check(int[] from, int[] to) {
        MemorySegment expected =
                MemorySegment.ofArray(new byte[(int) MEMORY_BYTES]).fill(GUARD);
        for (int i = 0; i < from.length; i++) {
            MemorySegment.copy(
                    writer.memory(), (long) from[i] * PAGE_BYTES, expected, (long) to[i] * PAGE_BYTES, PAGE_BYTES);
        }
        assertThat(target.memory().mismatch(expected)).as("first wrong byte").isEqualTo(-1);
    }

    void assertNothingLost() {
        assertThat(writer.failed).isEmpty();
        assertThat(writer.lost).isEmpty();
        assertThat(writer.endings.values()).containsOnly(1);
        assertThat(target.overshot).isEmpty();
        assertThat(target.refused).isEmpty();
        assertThat(target.closedAdmissions).isEmpty();
        assertThat(target.engine().counters().of(TransferCounter.STRAYS)).isZero();
    }

    private void breakSometimes() {
        if (random.nextInt(BREAK_ODDS) == 0) {
            breakOne();
        }
    }

    /** Breaks a socket at either end: unsent data is lost at the writer's, unread data at the target's. */
    private void breakOne() {
        breaks += (random.nextBoolean() ? breaking : breakingTarget).breakOne(random) ? 1 : 0;
    }

    /** The disturbance of a peer, each {@link #BREAK_INTERVAL_NS} in every other second. */
    protected void disturb() {
        breakOne();
    }

    /** Called at the start of the undisturbed seconds, possibly repeatedly. */
    protected void calm() {}

    /** Counts what {@link #disturb} has broken. */
    protected void addBreaks(int count) {
        breaks += count;
    }

    /** If opening a socket took longer than the interval, none would be open, and losing the peer be correct. */
    private boolean hasPath() {
        TransferCounters counters = target.engine().counters();
        return counters.of(TransferCounter.PATHS_OPENED) > counters.of(TransferCounter.PATHS_LOST);
    }

    @Test
    void shouldLoseDoubleOrDelayNoByteWhenDataSocketsBreak() {
        for (long cookie = 0; breaks < BREAKS_MIN; cookie += PAGE_COUNT) {
            round(cookie, this::breakSometimes);
        }
        assertNothingLost();
        assertThat(writer.engine().counters().of(TransferCounter.PATHS_LOST)).isPositive();
        System.out.println(breaks + " data sockets broken, "
                + writer.engine().counters().of(TransferCounter.WRITES_REPEATED) + " writes repeated");
    }

    @Test
    void shouldGoOnWhenAllDataSocketsBreakAtOnce() {
        boolean[] broken = {false};
        round(0, () -> {
            if (!broken[0]) {
                broken[0] = true;
                assertThat(breaking.breakAll()).isEqualTo(STREAMS);
            }
        });
        writer.await("all paths", () -> breaking.count() == STREAMS);
        round(PAGE_COUNT, () -> {});
        assertNothingLost();
    }

    @Test
    void shouldFailInTheTimeGivenWhenNoDataSocketComesBack() {
        close();
        connect(options().with(TransferOptions.CONNECT_LIMIT_NS, SHORT_LIMIT_NS));
        grant(draw(PAGE_COUNT), Long.MAX_VALUE, 1);
        int[] all = IntStream.range(0, PAGE_COUNT).toArray();
        breaking.refuseConnects();
        long beganNs = System.nanoTime();
        breaking.breakAll();
        int submitted = 0;
        while (submitted < 50
                && writer.engine().submit(peer, write(target, remote, all, all), submitted)
                        == TransferEngine.ACCEPTED) {
            submitted++;
        }
        writer.await("the loss", () -> writer.lost.containsKey(peer.id()));
        assertThat(System.nanoTime() - beganNs).isGreaterThan(SHORT_LIMIT_NS);
        assertThat(writer.lost.get(peer.id()).fault()).isEqualTo(TransferFault.UNREACHABLE);
        assertThat(writer.lost.get(peer.id()).detail()).contains("could be opened again in time");
        assertThat(writer.endings)
                .hasSize(submitted)
                .allSatisfy((cookie, times) -> assertThat(times).isEqualTo(1));
        target.await("the end of the admission", () -> target.closedAdmissions.containsKey(admission.id()));
    }

    /** The only sign is that the target reports nothing. */
    @Test
    void shouldRepeatWhatADataSocketSwallows() {
        close();
        connect(options().with(TransferOptions.CONNECT_LIMIT_NS, SHORT_LIMIT_NS));
        boolean[] swallowing = {false};
        round(0, () -> {
            if (!swallowing[0]) {
                swallowing[0] = true;
                breaking.swallowOne();
            }
        });
        // The first of them that posts to it waits for the limit.
        for (long round = 1; round < SWALLOWED_ROUNDS; round++) {
            round(round * PAGE_COUNT, () -> {});
        }
        assertNothingLost();
        assertThat(writer.engine().counters().of(TransferCounter.PATHS_LOST)).isPositive();
        assertThat(writer.engine().counters().of(TransferCounter.WRITES_REPEATED))
                .isPositive();
    }

    @Test
    void shouldLoseThePeerWithItsControlSocket() {
        round(0, () -> {});
        breaking.breakSpared(controlSocket.getFirst());
        DrivenEngine.awaitBoth(
                "both ends",
                writer,
                target,
                () -> writer.lost.containsKey(peer.id()) && target.closedAdmissions.containsKey(admission.id()));
        assertThat(writer.lost.get(peer.id()).fault()).isEqualTo(TransferFault.PEER_CLOSED);
    }

    /** Without the long run there is one second of each, and the speeds are only reported. */
    @Test
    void shouldLeaveOtherPeersTheirSpeedWhileOnesSocketsBreak() {
        try (DrivenEngine other = new DrivenEngine(options(), "other", MEMORY_BYTES)) {
            Bystander bystander = new Bystander(other);
            long beganNs = System.nanoTime();
            long runNs = Math.max(LONG_RUN_NS, TimeUnit.SECONDS.toNanos(2));
            long[] spentNs = new long[2];
            long[] writes = new long[2];
            long rounds = 0;
            lookedNs = beganNs;
            for (long cookie = 0; System.nanoTime() - beganNs < runNs || breaks == 0; cookie += PAGE_COUNT, rounds++) {
                long fromNs = System.nanoTime();
                long before = bystander.completed();
                int kind = (int) ((fromNs - beganNs) / TimeUnit.SECONDS.toNanos(1) % 2);
                round(cookie, () -> {
                    bystander.pump();
                    if (kind == 0 && System.nanoTime() - lookedNs > BREAK_INTERVAL_NS && hasPath()) {
                        lookedNs = System.nanoTime();
                        disturb();
                    } else if (kind == 1) {
                        calm();
                    }
                });
                spentNs[kind] += System.nanoTime() - fromNs;
                writes[kind] += bystander.completed() - before;
            }
            double share = ((double) writes[0] / spentNs[0]) / ((double) writes[1] / spentNs[1]);
            System.out.printf(
                    "%d s, %d data sockets broken, %d rounds of one peer, another peer kept %.3f of its speed%n",
                    TimeUnit.NANOSECONDS.toSeconds(runNs), breaks, rounds, share);
            assertThat(breaks).isPositive();
            assertNothingLost();
            if (LONG_RUN_NS > 0) {
                assertThat(share).isGreaterThan(SPEED_SHARE_MIN);
            }
        }
    }

    /** A second peer of the writer, which always has something to write to. */
    private final class Bystander {
        private static final long COOKIE_FIRST = 1L << 40;
        private static final int UNDER_WAY_MAX = 64;
        private final DrivenEngine engine;
        private final Peer other;
        private final PagedWrites write;
        private long submitted;
        private int looked;
        private long count;

        Bystander(DrivenEngine engine) {
            this.engine = engine;
            Admission own = engine.engine().admit("writer");
            other = writer.engine().connect(engine.engine().address(), own.key(), "other");
            engine.alongside(writer);
            DrivenEngine.awaitBoth("the bystander", writer, engine, () -> writer.ready.contains(other));
            breaking.spare(STREAMS, SOCKETS);
            WindowRanges everything = WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES);
            ImmWindow window = engine.openWindow(own, everything, Long.MAX_VALUE, 1);
            RemoteWindow bystanders = writer.engine()
                    .allow(other, window.imm(), WindowArea.of(engine.region().descriptor(), everything));
            int[] all = IntStream.range(0, PAGE_COUNT / 8).toArray();
            write = LostPathContractTest.this.write(engine, bystanders, all, all);
        }

        void pump() {
            while (submitted - completed() < UNDER_WAY_MAX
                    && writer.engine().submit(other, write, COOKIE_FIRST + submitted) == TransferEngine.ACCEPTED) {
                submitted++;
            }
            engine.poll();
        }

        long completed() {
            for (; looked < writer.completed.size(); looked++) {
                count += writer.completed.get(looked) >= COOKIE_FIRST ? 1 : 0;
            }
            return count;
        }
    }
}
