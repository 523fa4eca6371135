package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.ExtendWith;

/**
 * Libfabric's tcp over a real wire between two hosts, which fails: no byte is lost, doubled or late, and a peer on this host goes on
 * meanwhile. The target compares every byte.
 *
 * <p>{@code -Dkvmessenger.wire.seconds=5} has the link down for longer than the suite does.
 */
@Timeout(900)
@ExtendWith(NeedsLibFabric.class)
final class LibFabricWireTest {
    private static final long DOWN_NS = TimeUnit.SECONDS.toNanos(1) * Long.getLong("kvmessenger.wire.seconds", 1);
    private static final int ROUNDS = 8;
    private static final int PIECES = 16;

    private final long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
    private final Random random = new Random(seed);
    private SecondHost host;
    private WireTarget far;
    private DrivenEngine writer;
    private DrivenEngine neighbour;
    private Peer peer;
    private Peer besides;
    private PagedWrites toNeighbour;
    private long lastCookie;
    private long neighbours;
    private int seen;
    private int underWay;

    @BeforeEach
    void open() {
        System.out.println("seed " + seed + ", the same again by -Dkvmessenger.test.seed=" + seed);
        try {
            host = new SecondHost();
        } catch (IllegalStateException e) {
            Assumptions.abort("a second host is a network namespace, which takes root: " + e.getMessage());
        }
        TransferOptions options =
                InstalledFabric.byTcp(TransferOptions.defaults()).withHosts(host.near(), "");
        far = new WireTarget(host);
        writer = new DrivenEngine(options, "near", WireTarget.MEMORY_BYTES);
        neighbour = new DrivenEngine(options, "neighbour", WireTarget.MEMORY_BYTES);
        connectNeighbour();
        connect();
    }

    @AfterEach
    void close() {
        if (writer != null) {
            writer.close();
            neighbour.close();
            far.close();
        }
        if (host != null) {
            host.close();
        }
    }

    private void connect() {
        peer = writer.engine().connect(far.address(), far.key(), "far");
        writer.await("the far host", () -> writer.ready.contains(peer));
    }

    private void connectNeighbour() {
        Admission admission = neighbour.engine().admit("near");
        besides = writer.engine().connect(neighbour.engine().address(), admission.key(), "neighbour");
        DrivenEngine.awaitBoth("the neighbour", writer, neighbour, () -> writer.ready.contains(besides));
        RegionDescriptor region = neighbour.region().descriptor();
        ImmWindow window = neighbour.openWindow(admission, everything(), Long.MAX_VALUE, 1);
        RemoteWindow remote = writer.engine().allow(besides, window.imm(), WindowArea.of(region, everything()));
        PageList some = list(0, 1, 2, 3);
        toNeighbour = new PagedWrites(writer.region(), some, region, some, WireTarget.PAGE_BYTES, remote, 1);
    }

    private static WindowRanges everything() {
        return WindowRanges.ofEqual(new long[] {0}, WireTarget.MEMORY_BYTES);
    }

    private static PageList list(int... indices) {
        return new PageList(indices, 0, indices.length, WireTarget.PAGE_BYTES, 0);
    }

    /** One write to the neighbour at a time. */
    private void pump() {
        for (; seen < writer.completed.size(); seen++) {
            if (writer.completed.get(seen) < 0) {
                neighbours++;
                underWay--;
            }
        }
        if (underWay == 0 && writer.engine().submit(besides, toNeighbour, -1 - neighbours) == TransferEngine.ACCEPTED) {
            underWay++;
        }
        neighbour.poll();
        writer.poll();
    }

    /** Submits all pages of the round that the target has granted, in any order, and does something in the middle. */
    private RemoteWindow submit(Runnable inTheMiddle) {
        RemoteWindow window = writer.engine().allow(peer, far.imm(), WindowArea.of(far.region(), everything()));
        for (int i = 0; i < WireTarget.PAGE_COUNT; i++) {
            WireTarget.fill(
                    writer.memory().asSlice((long) i * WireTarget.PAGE_BYTES, WireTarget.PAGE_BYTES), far.round(), i);
        }
        List<Integer> order = IntStream.range(0, WireTarget.PAGE_COUNT).boxed().collect(Collectors.toList());
        Collections.shuffle(order, random);
        int[] pages = order.stream().mapToInt(Integer::intValue).toArray();
        int piece = WireTarget.PAGE_COUNT / PIECES;
        for (int i = 0; i < PIECES; i++) {
            PageList some = list(Arrays.copyOfRange(pages, i * piece, (i + 1) * piece));
            PagedWrites write =
                    new PagedWrites(writer.region(), some, far.region(), some, WireTarget.PAGE_BYTES, window, 1);
            writer.submit(peer, write, ++lastCookie);
            if (i == PIECES / 2) {
                inTheMiddle.run();
            }
        }
        return window;
    }

    private void round(Runnable inTheMiddle) {
        long first = lastCookie + 1;
        RemoteWindow window = submit(inTheMiddle);
        awaitRound(first, window);
    }

    private void awaitRound(long first, RemoteWindow window) {
        writer.await("the far host's round", () -> {
            pump();
            return far.hasSpoken() && haveEnded(first);
        });
        far.hear();
        writer.engine().disallow(peer, window);
        assertThat(writer.failed).isEmpty();
        assertThat(writer.lost).isEmpty();
    }

    private boolean haveEnded(long first) {
        for (long cookie = first; cookie <= lastCookie; cookie++) {
            if (!writer.endings.containsKey(cookie)) {
                return false;
            }
        }
        return true;
    }

    @Test
    void shouldGoOnWhereALinkWasDown() {
        round(() -> {});
        long[] cutNs = new long[1];
        long first = lastCookie + 1;
        RemoteWindow window = submit(() -> {
            host.linkDown();
            cutNs[0] = System.nanoTime();
        });
        long before = neighbours;
        writer.await("the link's return", () -> {
            pump();
            return System.nanoTime() - cutNs[0] > DOWN_NS;
        });
        assertThat(haveEnded(first) && far.hasSpoken()).as("the link was down").isFalse();
        assertThat(neighbours).as("writes to the neighbour").isGreaterThan(before + 10);
        host.linkUp();
        long upNs = System.nanoTime();
        awaitRound(first, window);
        System.out.printf(
                "link down %.1f s, all pages there %.1f s after it was up again, %d writes to a neighbour meanwhile%n",
                (upNs - cutNs[0]) / 1e9, (System.nanoTime() - upNs) / 1e9, neighbours - before);
        round(() -> {});
    }

    @Test
    void shouldLoseNothingWhereTheWireDropsPackets() {
        try {
            host.dropWhatDoesNotFit();
        } catch (IllegalStateException e) {
            Assumptions.abort("packets cannot be lost here: " + e.getMessage());
        }
        int rounds = 0;
        for (; rounds < ROUNDS || host.droppedCount() == 0; rounds++) {
            round(() -> {});
        }
        System.out.println(host.droppedCount() + " packets dropped in " + rounds + " rounds");
    }

    @Test
    void shouldEndAPeerThatIsKilledAndServeTheNext() {
        round(() -> {});
        Peer killed = peer;
        long first = lastCookie + 1;
        submit(() -> far.kill());
        writer.await("the loss", () -> {
            pump();
            return writer.lost.containsKey(killed.id()) && haveEnded(first);
        });
        assertThat(writer.endings.entrySet().stream().filter(one -> one.getKey() > 0))
                .allSatisfy(one -> assertThat(one.getValue()).isEqualTo(1));
        long before = neighbours;
        writer.await("the neighbour's writes", () -> {
            pump();
            return neighbours > before + 10;
        });
        far.close();
        far = new WireTarget(host);
        writer.lost.clear();
        writer.failed.clear();
        connect();
        round(() -> {});
    }
}
