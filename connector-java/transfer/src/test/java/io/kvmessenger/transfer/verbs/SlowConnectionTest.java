package io.kvmessenger.transfer.verbs;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * Paths that end while the driver still looks for the peer's port: the worker goes on at once for all other peers, and
 * the queue pair is closed when the driver has returned, not before.
 */
final class SlowConnectionTest {
    /** How the target's paths end. */
    enum End {
        DETACHED,
        DISMISSED,
        WRITER_GONE,
        NOT_WANTED,
        TOO_LATE
    }

    private final PathPair paths = new PathPair();

    @AfterEach
    void close() {
        paths.close();
        assertThat(paths.library.openPairs()).isZero();
    }

    private void end(End how) {
        switch (how) {
            case DETACHED -> paths.target.close();
            case DISMISSED -> paths.target.stop();
            case WRITER_GONE -> paths.target.onPeerGone();
            case NOT_WANTED -> paths.writerSays(VerbsRecord.PATH_CLOSED, new PathName(0, 0).with(MemorySegment.NULL));
            case TOO_LATE -> {
                paths.nowNs += PathPair.CONNECT_LIMIT_NS + 1;
                paths.target.poll(paths.nowNs);
            }
        }
    }

    /** Lets the driver connect the pending queue pair, and does this before it returns. */
    private void whileTheDriverConnects(Runnable act) {
        List<Throwable> thrown = new ArrayList<>();
        int[] count = new int[1];
        paths.library.inConnect = () -> {
            paths.library.inConnect = () -> {};
            count[0]++;
            try {
                act.run();
            } catch (Throwable t) { // else taken for the driver's refusal
                thrown.add(t);
            }
        };
        paths.answer();
        assertThat(count[0]).isEqualTo(1);
        assertThat(thrown).isEmpty();
    }

    @ParameterizedTest
    @EnumSource
    void shouldEndATargetsPathsWithoutWaitingAndProveThatOnlyWhenTheDriverHasReturned(End end) {
        paths.answers = 0;
        paths.accept();
        paths.turn();
        int openPairs = paths.library.openPairs();
        whileTheDriverConnects(() -> {
            end(end);
            paths.target.poll(paths.nowNs);
            assertThat(paths.library.openPairs()).isEqualTo(openPairs);
            assertThat(paths.target.isOver())
                    .as("a proof while the peer might be let in")
                    .isFalse();
            assertThat(paths.targetChannel.events).noneMatch(event -> event.startsWith("over"));
            assertThat(paths.target.waits()).isTrue();
            assertThat(paths.target.isFinished()).as("it has to be polled").isFalse();
        });
        assertThat(paths.library.openPairs()).isEqualTo(openPairs - 1);
        paths.target.poll(paths.nowNs);
        assertThat(paths.target.isOver()).isTrue();
        assertThat(paths.target.isCopying()).isFalse();
        if (end == End.DETACHED || end == End.DISMISSED || end == End.TOO_LATE) {
            assertThat(paths.targetChannel.events)
                    .filteredOn(event -> event.startsWith("over"))
                    .hasSize(1);
            assertThat(paths.target.isFinished()).isTrue();
        }
    }

    @Test
    void shouldEndAWritersPathsWithoutWaiting() {
        paths.answers = 1;
        paths.accept();
        paths.turn();
        int openPairs = paths.library.openPairs();
        whileTheDriverConnects(() -> {
            paths.writer.close();
            assertThat(paths.library.openPairs()).isEqualTo(openPairs);
        });
        assertThat(paths.library.openPairs()).isEqualTo(openPairs - 1);
    }

    /** An attempt that waits behind others in the device's thread has not begun: there is nothing to wait for. */
    @Test
    void shouldCloseAtOnceWhatTheDriverHasNotBegunWith() {
        paths.answers = 0;
        paths.accept();
        paths.turn();
        int openPairs = paths.library.openPairs();
        paths.target.close();
        assertThat(paths.library.openPairs()).isEqualTo(openPairs - 1);
        assertThat(paths.target.isOver()).isTrue();
        paths.answer();
        assertThat(paths.library.openPairs()).isEqualTo(openPairs - 1);
    }
}
