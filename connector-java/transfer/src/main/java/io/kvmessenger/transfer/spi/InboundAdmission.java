package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Admission;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The worker's record of one admission: the link that uses it, and the reads requested of its peer. Worker only, except
 * where stated.
 */
public final class InboundAdmission {
    /** Limit on the parts of reads that a peer has been asked for and has not answered. */
    public static final int READS_ASKED_MAX = 8;

    private final MessageQueue asked = new MessageQueue(READS_ASKED_MAX);
    private final AtomicInteger openAsks = new AtomicInteger();
    private final Admission admission;
    private final byte[] keyName;
    private InboundLink link;
    private boolean lastUse;

    public InboundAdmission(Admission admission) {
        this.admission = admission;
        keyName = KeyProof.nameOf(admission.key());
    }

    public Admission admission() {
        return admission;
    }

    public boolean isNamed(byte[] name) {
        return Arrays.equals(keyName, name);
    }

    /** Messenger's thread: asks the peer for a part of a read; false when {@link #READS_ASKED_MAX} are unanswered. */
    public boolean ask(MemorySegment record) {
        return openAsks.incrementAndGet() <= READS_ASKED_MAX && asked.offer(record);
    }

    /** Requests to be sent to the peer. */
    public MessageQueue asked() {
        return asked;
    }

    /** The peer has answered a request; false when there was none. */
    public boolean endAsk() {
        return openAsks.get() > 0 && openAsks.decrementAndGet() >= 0;
    }

    /** The link that uses the key, or null. */
    public InboundLink link() {
        return link;
    }

    /** A key serves one link at a time; a link that never became ready returns it. */
    public void claim(InboundLink user) {
        if (link != null) {
            throw new IllegalStateException("admission " + admission.id() + " is in use");
        }
        link = user;
    }

    public void giveBack() {
        link = null;
    }

    /** From now on the admission ends as soon as no link uses it, even if the link was never ready. */
    public void allowNoFurtherLink() {
        lastUse = true;
    }

    /** Whether a link that was never ready may return the key for another one. */
    public boolean allowsFurtherLink() {
        return !lastUse;
    }
}
