package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Admission;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The worker's record of one admission: which link uses it, and what its peer is asked for. Worker only, except where said.
 */
public final class InboundAdmission {
    /** Parts of reads that a peer is asked for and that it has not answered. */
    public static final int READS_ASKED_MAX = 8;

    private final MessageQueue asked = new MessageQueue(READS_ASKED_MAX);
    private final AtomicInteger openAsks = new AtomicInteger();
    private final Admission admission;
    private final byte[] keyName;
    private InboundLink link;

    public InboundAdmission(Admission admission) {
        this.admission = admission;
        keyName = KeyProof.nameOf(admission.key());
    }

    public Admission admission() {
        return admission;
    }

    /** Whether its key has this name. */
    public boolean isNamed(byte[] name) {
        return Arrays.equals(keyName, name);
    }

    /** Messenger's thread: asks the peer for a part of a read; false when {@link #READS_ASKED_MAX} are not answered. */
    public boolean ask(MemorySegment record) {
        return openAsks.incrementAndGet() <= READS_ASKED_MAX && asked.offer(record);
    }

    /** What is to be sent to the peer. */
    public MessageQueue asked() {
        return asked;
    }

    /** The peer has answered; false when it was not asked. */
    public boolean endAsk() {
        return openAsks.get() > 0 && openAsks.decrementAndGet() >= 0;
    }

    /** The link that uses the key, or null. */
    public InboundLink link() {
        return link;
    }

    /** A key serves one link at a time; a link that never became ready gives it back. */
    public void claim(InboundLink user) {
        if (link != null) {
            throw new IllegalStateException("admission " + admission.id() + " is in use");
        }
        link = user;
    }

    public void giveBack() {
        link = null;
    }
}
