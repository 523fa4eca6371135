package io.kvmessenger.transfer.tcp;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.spi.OutboundChannel;
import java.lang.reflect.Proxy;
import org.junit.jupiter.api.Test;

/** A target that does not answer, in time that the test moves: it is stopped, or its machine is out of reach. */
final class AnswerWaitTest {
    private static final long BEGAN_NS = Long.MAX_VALUE - AnswerWait.LIMIT_NS;

    private long heldBytes;
    private final OutboundChannel channel = (OutboundChannel) Proxy.newProxyInstance(
            OutboundChannel.class.getClassLoader(),
            new Class<?>[] {OutboundChannel.class},
            (proxy, method, arguments) -> heldBytes);

    /** How long the wait takes, while the control socket holds {@code stepBytes} more each time that it is asked. */
    private long waitNs(boolean patient, long firstBytes, long stepBytes) {
        heldBytes = firstBytes;
        AnswerWait wait = new AnswerWait(patient, BEGAN_NS);
        long nowNs = BEGAN_NS;
        while (!wait.isOver(nowNs)) {
            nowNs += AnswerWait.LOOK_NS;
            heldBytes += stepBytes;
            wait.look(channel, nowNs);
        }
        return nowNs - BEGAN_NS;
    }

    @Test
    void shouldWaitLongForATargetThatIsOnlyStopped() {
        assertThat(waitNs(true, 0, 0)).isEqualTo(AnswerWait.PATIENT_LIMIT_NS + AnswerWait.LOOK_NS);
        assertThat(waitNs(true, 1 << 20, -1)).isEqualTo(AnswerWait.PATIENT_LIMIT_NS + AnswerWait.LOOK_NS);
    }

    @Test
    void shouldNotWaitLongOnAControlSocketOfWhichNothingIsAcknowledged() {
        assertThat(waitNs(true, 24, 0)).isLessThanOrEqualTo(AnswerWait.LIMIT_NS + 2 * AnswerWait.LOOK_NS);
        assertThat(waitNs(true, 24, 8)).isLessThanOrEqualTo(AnswerWait.LIMIT_NS + 2 * AnswerWait.LOOK_NS);
    }

    @Test
    void shouldWaitLittleForTheCountOfASocketThatBroke() {
        assertThat(waitNs(false, 0, 0)).isEqualTo(AnswerWait.LIMIT_NS + AnswerWait.LOOK_NS);
    }
}
