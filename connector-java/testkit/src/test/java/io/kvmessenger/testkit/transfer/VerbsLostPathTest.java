package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** What happens to writes over verbs when their wire loses packets, is cut and restored, or their target does not look. */
@Timeout(900)
final class VerbsLostPathTest extends VerbsRounds {
    private static final int SWALLOWED = 3;
    /** More than a target posts receives for. */
    private static final int IMMEDIATES = 1500;

    private VerbsWire wire;

    @BeforeEach
    void find() {
        wire = new VerbsWire();
    }

    @AfterEach
    void restore() {
        wire.loseNothing();
        wire.restore();
    }

    private void connect(String... transports) {
        connect(open("writer", transports), open("target", transports));
    }

    private DrivenEngine open(String name, String... transports) {
        return new DrivenEngine(RdmaDevices.by(options(), name).withTransports(transports), name, MEMORY_BYTES);
    }

    @Test
    void shouldSendByTheWire() {
        connect(TransferOptions.VERBS);
        long before = wire.sentBytes();
        round(() -> {});
        assertThat(wire.sentBytes() - before).isGreaterThan(MEMORY_BYTES);
        assertNothingLost();
    }

    @Test
    void shouldBearPacketsThatAreLost() {
        connect(TransferOptions.VERBS);
        wire.lose("1");
        try {
            for (int i = 0; i < 5; i++) {
                round(() -> {});
            }
        } finally {
            wire.loseNothing();
        }
        assertNothingLost();
    }

    /** What was under way when the wire was cut is known, write by write: the rest goes by tcp, and nothing counts twice. */
    @Test
    void shouldGoOnOverTcpWhenTheWireIsCutAndTakeVerbsAgainWhenItIsRestored() {
        connect(TransferOptions.VERBS, TransferOptions.TCP);
        round(() -> {});
        round(wire::cut);
        assertThat(peer.transport()).isEqualTo(TransferOptions.TCP);
        assertThat(writer.engine().counters().of(TransferCounter.WRITES_REPEATED))
                .isPositive();
        round(() -> {});
        wire.restore();
        while (!peer.transport().equals(TransferOptions.VERBS)) {
            round(() -> {});
        }
        round(() -> {});
        assertNothingLost();
    }

    /** Nothing but silence says that it swallows. */
    @Test
    void shouldLoseNothingHoweverOftenTheWireSwallowsAll() {
        connect(TransferOptions.VERBS, TransferOptions.TCP);
        for (int i = 0; i < SWALLOWED; i++) {
            round(() -> wire.lose("100"));
            assertThat(peer.transport()).isEqualTo(TransferOptions.TCP);
            wire.loseNothing();
            while (!peer.transport().equals(TransferOptions.VERBS)) {
                round(() -> {});
            }
        }
        assertThat(writer.engine().counters().of(TransferCounter.WRITES_REPEATED))
                .isPositive();
        assertNothingLost();
    }

    @Test
    void shouldEndThePeerWhenTheWireIsCutAndThereIsNoOtherWay() {
        connect(TransferOptions.VERBS);
        round(() -> {});
        ImmWindow window = grant(everything(), Long.MAX_VALUE, ++lastCookie);
        long firstCookie = lastCookie + 1;
        wire.cut();
        int[] all = shuffled(PAGE_COUNT, random);
        for (int i = 0; i < WRITES; i++) {
            writer.submit(peer, paged(window, all, all), ++lastCookie);
        }
        writer.await("the loss", () -> writer.lost.containsKey(peer.id()) && haveEnded(firstCookie));
        assertThat(writer.lost.get(peer.id()).fault()).isEqualTo(TransferFault.DISCONNECTED);
        assertThat(writer.lost.get(peer.id()).detail()).contains(RdmaDevices.deviceOf("writer"));
        assertThat(writer.endings.values()).containsOnly(1);
        target.await("the end", () -> target.closedAdmissions.containsKey(admission.id()));
        window.close(true);
    }

    /** The writer's device waits for receives, for as long as it takes; nothing fails by it. */
    @Test
    void shouldWaitForATargetThatDoesNotLook() {
        writer = open("writer", TransferOptions.VERBS);
        target = new DrivenEngine(
                RdmaDevices.by(options(), "target").with(TransferOptions.THREADING, ThreadingMode.CALLER),
                "target",
                MEMORY_BYTES);
        admission = target.engine().admit("writer");
        peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
        writer.alongside(target);
        writer.await("the peer to be ready", () -> writer.ready.contains(peer));
        ImmWindow window = grant(everything(), IMMEDIATES, 1);
        // From now on the target looks only when it is asked to.
        writer.alongside(null);
        long before = wire.counted("rcvd_rnr_err");
        int[] submitted = {0};
        writer.await("the target's receives to run out", () -> {
            while (submitted[0] < IMMEDIATES
                    && writer.engine().submit(peer, immediate(window, 1), 1000L + submitted[0])
                            == TransferEngine.ACCEPTED) {
                submitted[0]++;
            }
            return wire.counted("rcvd_rnr_err") > before;
        });
        assertThat(window.arrivedWeight()).isZero();
        writer.alongside(target);
        for (; submitted[0] < IMMEDIATES; submitted[0]++) {
            writer.submit(peer, immediate(window, 1), 1000L + submitted[0]);
        }
        DrivenEngine.awaitBoth("all", target, writer, () -> target.filled.contains(1L));
        writer.await("the completions", () -> writer.completed.size() == IMMEDIATES);
        assertNothingLost();
    }
}
