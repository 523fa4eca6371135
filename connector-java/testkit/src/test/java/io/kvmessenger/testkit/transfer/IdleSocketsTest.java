package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.tcp.TcpTransport;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Connections that a firewall forgets while nothing moves, any of a peer's: their end is found before the next write
 * needs them, since none of them is judged by another one. In time that the test moves.
 */
@Timeout(900)
final class IdleSocketsTest {
    private static final int STREAMS = 2;
    private static final int WRITE_BYTES = 4096;
    private static final long IDLE_LIMIT_NS = TimeUnit.SECONDS.toNanos(15);
    /** What stays within one interval of the heartbeats, of which there are several within the limit. */
    private static final long STEP_NS = TimeUnit.MILLISECONDS.toNanos(100);

    private static final long FOUND_LIMIT_NS = 2 * IDLE_LIMIT_NS;
    private static final long SERVED_LIMIT_NS = TimeUnit.SECONDS.toNanos(1);

    private final BreakingLibC ofWriter = new BreakingLibC();

    private TestedClock open(boolean sealed) {
        TransferOptions options = TransferOptions.defaults()
                .withTransports(TransferOptions.TCP)
                .with(TcpTransport.STREAMS_PER_PEER, STREAMS)
                .with(TransferOptions.IDLE_LIMIT_NS, IDLE_LIMIT_NS)
                .with(TransferOptions.SEAL_TCP, sealed);
        return new TestedClock(options, WRITE_BYTES, ofWriter.libC(), new BreakingLibC().libC());
    }

    private static void assertServed(TestedClock pair) {
        long repeated = pair.writer.engine().counters().of(TransferCounter.WRITES_REPEATED);
        long cookie = pair.write(WRITE_BYTES);
        pair.reach(
                TimeUnit.MILLISECONDS.toNanos(1),
                SERVED_LIMIT_NS,
                () -> pair.target.filled.contains(cookie) && pair.writer.completed.contains(cookie));
        assertThat(pair.writer.engine().counters().of(TransferCounter.WRITES_REPEATED))
                .isEqualTo(repeated);
    }

    private static long opened(TestedClock pair) {
        return pair.writer.engine().counters().of(TransferCounter.PATHS_OPENED);
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void shouldReplaceDataSocketsThatWereForgottenWhileIdle(boolean sealed) {
        try (TestedClock pair = open(sealed)) {
            ofWriter.forget(ofWriter.all().subList(1, 1 + STREAMS));
            pair.reach(STEP_NS, FOUND_LIMIT_NS, () -> opened(pair) == 2 * STREAMS);
            assertServed(pair);
            assertThat(pair.writer.lost).isEmpty();
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void shouldReplaceASingleDataSocketThatWasForgottenWhileIdle(int place) {
        try (TestedClock pair = open(false)) {
            ofWriter.forget(List.of(ofWriter.all().get(place)));
            pair.reach(STEP_NS, FOUND_LIMIT_NS, () -> opened(pair) == STREAMS + 1);
            assertServed(pair);
            assertServed(pair);
            assertThat(pair.writer.lost).isEmpty();
        }
    }

    /** Without a control socket there is no peer: its user connects again, which takes no time. */
    @ParameterizedTest
    @ValueSource(ints = {1, 1 + STREAMS})
    void shouldLoseThePeerWhileIdleWithItsControlSocketAtBothEnds(int forgottenCount) {
        try (TestedClock pair = open(false)) {
            int first = pair.peer.id();
            ofWriter.forget(ofWriter.all().subList(0, forgottenCount));
            pair.reach(STEP_NS, FOUND_LIMIT_NS, () -> pair.writer.lost.containsKey(first));
            assertThat(pair.writer.lost.get(first).detail())
                    .isEqualTo("nothing came from the peer on the control socket for 15.0 s");
            pair.reach(STEP_NS, FOUND_LIMIT_NS, () -> pair.target.closedAdmissions.containsKey(pair.admission.id()));
            pair.connect();
            assertServed(pair);
        }
    }

    /** The worst moment: the write comes right after. It fails, and long before a user gives up. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void shouldNotWaitForMinutesWhenAllIsForgottenRightBeforeAWrite(boolean sealed) {
        try (TestedClock pair = open(sealed)) {
            ofWriter.forget(ofWriter.all());
            long cookie = pair.write(WRITE_BYTES);
            long tookNs = pair.reach(STEP_NS, FOUND_LIMIT_NS, () -> pair.writer.failed.containsKey(cookie));
            assertThat(pair.writer.failed.get(cookie).fault()).isEqualTo(TransferFault.PEER_CLOSED);
            System.out.printf("failed after %.1f s%n", tookNs / 1e9);
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void shouldKeepAnIdlePeerForAsLongAsItIsThere(boolean sealed) {
        try (TestedClock pair = open(sealed)) {
            long endNs = pair.nowNs() + TimeUnit.HOURS.toNanos(1);
            pair.reach(10 * STEP_NS, Long.MAX_VALUE, () -> pair.nowNs() >= endNs);
            assertServed(pair);
            assertThat(opened(pair)).isEqualTo(STREAMS);
            assertThat(pair.writer.lost).isEmpty();
            assertThat(pair.target.engine().counters().of(TransferCounter.STRAYS))
                    .isZero();
        }
    }

    /** Its machine answers for it: what it had not taken is sent again when it goes on. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void shouldWaitForATargetThatIsStoppedForAWhile(boolean sealed) {
        try (TestedClock pair = open(sealed)) {
            long cookie = pair.write(WRITE_BYTES);
            long endNs = pair.nowNs() + IDLE_LIMIT_NS - TimeUnit.SECONDS.toNanos(1);
            while (pair.nowNs() < endNs) {
                TestedClock.cycleOf(pair.writer);
                pair.pass(STEP_NS);
            }
            assertThat(pair.writer.lost).isEmpty();
            pair.reach(
                    STEP_NS,
                    FOUND_LIMIT_NS,
                    () -> pair.target.filled.contains(cookie) && pair.writer.completed.contains(cookie));
            assertThat(pair.writer.failed).isEmpty();
            assertThat(pair.target.overshot).isEmpty();
        }
    }
}
