package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.samehost.ImmRing;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** The fastest transport is lost and comes back: as often as it is lost, and never as a place where writes vanish. */
final class SameHostReturnTest {
    private static final int FLAPS = 1_000;
    /** More than a handshake takes, in duty cycles of one side. */
    private static final int HANDSHAKE_STEPS = 24;

    private final SameHostPair pair = new SameHostPair();

    @AfterEach
    void close() {
        pair.close();
    }

    /** It was lost for good after the 30th time, and each later write took a slower transport. */
    @Test
    void shouldComeBackAfterEachOfAThousandLosses() {
        for (int flap = 1; flap <= FLAPS; flap++) {
            assertThat(pair.write(false)).as("before loss %d", flap).isEqualTo("shm");
            assertThat(pair.write(true)).as("after loss %d", flap).isEqualTo("beside");
            pair.pass(PeerDomain.REST_MIN_NS);
            pair.steps(HANDSHAKE_STEPS);
        }
        pair.mapsAll = true;
        pair.pass(PeerDomain.REST_MIN_NS);
        pair.steps(HANDSHAKE_STEPS);
        assertThat(pair.write(false)).isEqualTo("shm");
        assertThat(pair.vanished()).isZero();
        assertThat(pair.faults()).isZero();
    }

    /** Its decoder would wait for them for ever: the ring has room for 16,384 of them. */
    @Test
    void shouldLoseNoImmediateOfMoreThanTheRingHoldsWhileTheTargetSleeps() {
        long taken = pair.writeToASleepingTarget(40_000);
        assertThat(taken).isGreaterThan(ImmRing.CAPACITY);
        assertThat(pair.allCompleted()).as("the ring is full").isFalse();
        for (int i = 0; i < 1_000 && !pair.allCompleted(); i++) {
            pair.step();
        }
        pair.steps(HANDSHAKE_STEPS);
        assertThat(pair.allCompleted()).isTrue();
        assertThat(pair.window.arrivedWeight()).isEqualTo(taken);
        assertThat(pair.faults()).isZero();
    }

    /** Without effect, the pages that the target's engine takes back would be written on. */
    @Test
    void shouldEndTheWriterOfARevokedAdmission() {
        assertThat(pair.write(false)).isEqualTo("shm");
        pair.revoke();
        for (int i = 0; i < 100 && !(pair.writerLost() && pair.admissionClosed()); i++) {
            pair.step();
        }
        assertThat(pair.writerLost()).isTrue();
        assertThat(pair.admissionClosed()).isTrue();
    }

    static IntStream moments() {
        return IntStream.range(0, 2 * HANDSHAKE_STEPS);
    }

    /** The target has given the attachment up meanwhile: what was written there completed and was never counted. */
    @ParameterizedTest
    @MethodSource("moments")
    void shouldNotWriteWhereNothingIsTakenAfterTheWriterStoodStill(int moment) {
        attachAgain(moment);
        for (long passed = 0; passed < 2 * SameHostPair.CONNECT_LIMIT_NS; passed += SameHostPair.CONNECT_LIMIT_NS / 8) {
            pair.pass(SameHostPair.CONNECT_LIMIT_NS / 8);
            pair.stepTarget();
        }
        assertAllArrive();
    }

    @ParameterizedTest
    @MethodSource("moments")
    void shouldNotWriteWhereNothingIsTakenAfterTheTargetStoodStill(int moment) {
        attachAgain(moment);
        for (long passed = 0; passed < 2 * SameHostPair.CONNECT_LIMIT_NS; passed += SameHostPair.CONNECT_LIMIT_NS / 8) {
            pair.pass(SameHostPair.CONNECT_LIMIT_NS / 8);
            pair.stepWriter();
        }
        assertAllArrive();
    }

    /** Loses shm and begins to attach it again; returns in the middle of that. */
    private void attachAgain(int moment) {
        assertThat(pair.write(true)).isEqualTo("beside");
        pair.mapsAll = true;
        pair.pass(PeerDomain.REST_MIN_NS);
        for (int i = 0; i < moment; i++) {
            if (i % 2 == 0) {
                pair.stepWriter();
            } else {
                pair.stepTarget();
            }
        }
    }

    private void assertAllArrive() {
        for (int i = 0; i < 20; i++) {
            pair.write(i % 2 == 0);
        }
        pair.steps(HANDSHAKE_STEPS);
        assertThat(pair.vanished()).as("completed, and never counted").isZero();
        assertThat(pair.faults()).isZero();
        for (int tries = 0; tries < 4; tries++) {
            pair.pass(4 * PeerDomain.REST_MIN_NS);
            pair.steps(4 * HANDSHAKE_STEPS);
        }
        assertThat(pair.write(true)).as("back at last").isEqualTo("shm");
        assertThat(pair.vanished()).isZero();
    }
}
