package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.TransferCounter;
import java.util.Arrays;
import java.util.Random;
import org.junit.jupiter.api.BeforeEach;

/** Rounds of pages while something happens to a path, and checks of the consequences that are forbidden. */
abstract class RoundsOfPages extends WriterAndTarget {
    static final int WRITES = 40;

    private final long seed = Long.getLong("kvmessenger.test.seed", System.nanoTime());
    final Random random = new Random(seed);
    long lastCookie;

    /** Does not connect yet: each test selects the transport. */
    @Override
    @BeforeEach
    void connect() {
        System.out.println("seed " + seed + ", the same again by -Dkvmessenger.test.seed=" + seed);
    }

    /** @param transport the transport by which their peers should connect */
    void connect(DrivenEngine newWriter, DrivenEngine newTarget, String transport) {
        writer = newWriter;
        target = newTarget;
        writer.alongside(target);
        target.alongside(writer);
        admission = target.engine().admit("writer");
        peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
        writer.await("the peer to be ready", () -> writer.ready.contains(peer) || !writer.lost.isEmpty());
        assertThat(writer.lost).isEmpty();
        assertThat(peer.transport()).isEqualTo(transport);
        target.memory().fill(GUARD);
    }

    /** Writes random pages into a window of their own, while something happens in the middle; then verifies each. */
    void round(Runnable inTheMiddle) {
        fillSource(random);
        int[] from = shuffled(PAGE_COUNT, random);
        int[] to = shuffled(PAGE_COUNT, random);
        long filled = ++lastCookie;
        ImmWindow window = grant(everything(), PAGE_COUNT, filled);
        long firstCookie = lastCookie + 1;
        int piece = (PAGE_COUNT + WRITES - 1) / WRITES;
        for (int done = 0; done < PAGE_COUNT; done += piece) {
            int end = Math.min(PAGE_COUNT, done + piece);
            writer.submit(
                    peer,
                    paged(window, Arrays.copyOfRange(from, done, end), Arrays.copyOfRange(to, done, end)),
                    ++lastCookie);
            if (done <= PAGE_COUNT / 2 && done + piece > PAGE_COUNT / 2) {
                inTheMiddle.run();
            }
        }
        DrivenEngine.awaitBoth(
                "a round", writer, target, () -> target.filled.contains(filled) && haveEnded(firstCookie));
        for (int i = 0; i < PAGE_COUNT; i++) {
            assertThat(pageArrived(from[i], to[i])).as("page %d", i).isTrue();
        }
        assertThat(window.arrivedWeight()).isEqualTo(PAGE_COUNT);
        writer.engine().disallow(peer, remote(window));
        window.close(true);
    }

    boolean haveEnded(long firstCookie) {
        for (long cookie = firstCookie; cookie <= lastCookie; cookie++) {
            if (!writer.endings.containsKey(cookie)) {
                return false;
            }
        }
        return true;
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
}
