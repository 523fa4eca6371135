package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** A peer rests when, and only when, nothing of it is queued or under way. */
final class PeerRestTest extends OutboundPeerBed {
    private static final int STEPS = 200;
    private static final int WRITES_MAX = 4;

    private boolean rests() {
        return peer.rest().isOn();
    }

    @Test
    void shouldNotRestBeforeItCanBeWrittenTo() {
        peer.connect(0);
        peer.doWork(0);
        assertThat(rests()).isFalse();
    }

    static IntStream seeds() {
        return IntStream.range(0, 200);
    }

    /** At rest with a write queued, it would wait for the next sweep, and with one under way for its report. */
    @ParameterizedTest
    @MethodSource("seeds")
    void shouldRestExactlyWhileNothingIsQueuedOrUnderWay(int seed) {
        Random random = new Random(seed);
        FakePath path = openPreferred();
        int reported = 0;
        long submitted = 0;
        for (int step = 0; step < STEPS; step++) {
            switch (random.nextInt(5)) {
                case 0 -> {
                    if (submitted - completed().size() < WRITES_MAX) {
                        submit(1 + random.nextInt(3), ++submitted);
                        assertThat(rests()).as("a write is queued").isFalse();
                    }
                }
                case 1 -> {
                    if (reported < path.postIds.size()) {
                        events.onSent(path.postIds.get(reported++));
                    }
                }
                case 2 -> path.room = path.room == 0 ? Integer.MAX_VALUE : 0;
                default -> peer.doWork(0);
            }
            if (rests()) {
                assertThat(completed()).hasSize((int) submitted);
            }
        }
        path.room = Integer.MAX_VALUE;
        while (completed().size() < submitted) {
            peer.doWork(0);
            while (reported < path.postIds.size()) {
                events.onSent(path.postIds.get(reported++));
            }
        }
        peer.doWork(0);
        assertThat(rests()).isTrue();
    }

    @Test
    void shouldNotRestWithAMessageOrAnAnswerThatHasNotBeenSent() {
        openPreferred();
        peer.doWork(0);
        assertThat(rests()).isTrue();
        for (var queue : List.of(peer.messages(), peer.answers())) {
            queue.offer(MemorySegment.ofArray(new byte[8]));
            peer.rest().stir();
            assertThat(rests()).isFalse();
            peer.doWork(0);
            assertThat(rests()).isEqualTo(queue.peek() == null);
            while (queue.peek() != null) {
                queue.release();
            }
            peer.rest().stir();
            peer.doWork(0);
            assertThat(rests()).isTrue();
        }
    }
}
