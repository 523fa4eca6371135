package io.kvmessenger.transfer.nic;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundPort;

/**
 * The immediates of one path of an admitted peer. The first of them names no window, and proves that the path works.
 *
 * <p>Worker only. The card has written their pages already, and checked none.
 */
public final class Intake {
    /** Immediates that one duty cycle may take before other peers are served. */
    public static final int TURN_IMMS = 4096;

    /** Writes of a peer that has gone may be in flight: they count as complete after this time without an arrival. */
    private static final long QUIET_NS = 20_000_000L;

    private final InboundPort port;
    private final InboundAdmission from;
    private boolean proven;
    private boolean stopped;
    private long writeCount;
    private long heardNs;

    public Intake(InboundPort port, InboundAdmission from) {
        this.port = port;
        this.from = from;
    }

    /** Takes an immediate; false if no writer of this version sends such a one. */
    public boolean take(int imm) {
        if (imm == Imm.NONE) {
            proven = true;
            return true;
        }
        if (Imm.weight(imm) == 0) {
            return false;
        }
        writeCount++;
        if (!stopped) {
            port.onArrived(from, imm & ~Imm.WEIGHT_MAX, Imm.weight(imm));
        }
        return true;
    }

    public boolean isProven() {
        return proven;
    }

    /** Number of immediates taken, without those that name no window. */
    public long writeCount() {
        return writeCount;
    }

    /** From now on nothing is counted at windows. */
    public void stop() {
        stopped = true;
    }

    /** Something has arrived, or the peer has gone. */
    public void onHeard(long nowNs) {
        heardNs = nowNs;
    }

    /** Whether nothing is in flight any more, if the peer has gone. */
    public boolean isQuiet(long nowNs) {
        return nowNs - heardNs > QUIET_NS;
    }
}
