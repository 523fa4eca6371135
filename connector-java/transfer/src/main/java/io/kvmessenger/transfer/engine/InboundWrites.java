package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.engine.WindowTable.Window;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.GrantedSlabs;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Landing;
import io.kvmessenger.transfer.spi.MessageQueue;
import io.kvmessenger.transfer.spi.OpenWindow;
import io.kvmessenger.transfer.spi.RemoteKey;
import io.kvmessenger.transfer.staging.Staging;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.VarHandle;
import java.util.concurrent.CopyOnWriteArrayList;

/**
 * Checks and counts the writes of one worker's peers. Used by that worker only, except {@link #admit},
 * {@link #admissionOf} and the reading end of the message queue. Windows are shared by all workers.
 */
final class InboundWrites implements InboundPort {
    static final int MESSAGES_MAX = 256;

    /** Pushed when a peer has reported the result of a read. */
    record Answered(Admission from, ReadAnswer answer) {}

    private final CopyOnWriteArrayList<InboundAdmission> admissions = new CopyOnWriteArrayList<>();
    private final WindowTable windows;
    private final RegionTable regions;
    private final CompletionRing completions;
    private final Figures figures;
    private final Staging staging;
    private final MessageQueue messages = new MessageQueue(MESSAGES_MAX);
    private volatile boolean messageWaits;

    InboundWrites(
            WindowTable windows, RegionTable regions, CompletionRing completions, Figures figures, Staging staging) {
        this.windows = windows;
        this.regions = regions;
        this.completions = completions;
        this.figures = figures;
        this.staging = staging;
    }

    /** Any thread: the key is valid when this returns. */
    void admit(Admission admission) {
        admissions.add(new InboundAdmission(admission));
    }

    void revoke(Admission admission, String detail) {
        for (InboundAdmission entry : admissions) {
            if (entry.admission().id() != admission.id()) {
                continue;
            }
            entry.allowNoFurtherLink();
            if (entry.link() != null) {
                entry.link().revoke(detail);
            }
            if (entry.link() == null) {
                onClosed(entry, detail);
            }
        }
    }

    /** Ends the admission at once, or with the link that uses it: that one may still turn out to be never ready. */
    void revokeUnused(Admission admission, String detail) {
        InboundAdmission entry = entryOf(admission);
        if (entry == null) {
            return;
        }
        entry.allowNoFurtherLink();
        if (entry.link() == null) {
            onClosed(entry, detail);
        }
    }

    /** Closes every admission that no link uses; the worker has ended, so no link ever will. */
    void closeUnused(String detail) {
        for (InboundAdmission entry : admissions) {
            if (entry.link() == null) {
                onClosed(entry, detail);
            }
        }
    }

    /** Any thread: the admission's entry while it is live, or null. */
    InboundAdmission entryOf(Admission admission) {
        for (InboundAdmission entry : admissions) {
            if (entry.admission().id() == admission.id()) {
                return entry;
            }
        }
        return null;
    }

    MessageQueue messages() {
        return messages;
    }

    /** Frees the message last peeked; returns whether a refused message waits for the free slot. Reading end. */
    boolean releaseMessage() {
        messages.release();
        VarHandle.fullFence();
        if (!messageWaits) {
            return false;
        }
        messageWaits = false;
        return true;
    }

    /** Flags that a message waits, then tries once more: a slot may have been freed before the flag was visible. */
    private boolean offerAgain(MemorySegment message) {
        messageWaits = true;
        VarHandle.fullFence();
        return messages.offer(message);
    }

    @Override
    public InboundAdmission admissionOf(byte[] keyName) {
        for (InboundAdmission entry : admissions) {
            if (entry.isNamed(keyName)) {
                return entry;
            }
        }
        return null;
    }

    @Override
    public OpenWindow windowOf(int imm) {
        return windows.find(imm);
    }

    @Override
    public boolean expectsWrites() {
        return windows.openCount() > 0;
    }

    @Override
    public boolean copiesTo(Memory.Device memory) {
        return staging.refusal(memory) == null;
    }

    @Override
    public Landing landing(InboundAdmission from, Figures transport, Landing.Events events) {
        return staging.landing(from, this, transport, events);
    }

    @Override
    public GrantedSlabs grantSlabs(InboundAdmission from, Figures transport, GrantedSlabs.Events events) {
        return staging.grant(from, this, transport, events);
    }

    @Override
    public void onStray() {
        figures.increment(TransferCounter.STRAYS);
    }

    @Override
    public void onArrived(InboundAdmission from, int imm, long weight) {
        Window window = windows.find(imm);
        int outcome = window == null || !window.isOf(from)
                ? ImmCounters.STRAY
                : windows.counters().arrive(imm, weight);
        switch (outcome) {
            case ImmCounters.FILLED -> completions.push(CompletionRing.WINDOW_FILLED, 0, 0, window, null);
            case ImmCounters.OVERSHOT ->
                completions.push(
                        CompletionRing.WINDOW_OVERSHOT, 0, windows.counters().arrivedWeight(imm), window, null);
            case ImmCounters.STRAY -> figures.increment(TransferCounter.STRAYS);
            default -> {}
        }
    }

    @Override
    public void onRefused(InboundAdmission from, String detail) {
        figures.increment(TransferCounter.WRITES_REFUSED);
        completions.push(CompletionRing.WRITE_REFUSED, 0, 0, from.admission(), detail);
    }

    @Override
    public void onClosed(InboundAdmission from, String detail) {
        if (admissions.remove(from)) {
            from.giveBack();
            completions.push(CompletionRing.ADMISSION_CLOSED, 0, 0, from.admission(), detail);
        }
    }

    @Override
    public boolean onMessage(InboundAdmission from, MemorySegment message) {
        if (!messages.offer(message) && !offerAgain(message)) {
            return false;
        }
        completions.push(CompletionRing.MESSAGE, 0, 0, from.admission(), null);
        return true;
    }

    @Override
    public boolean onReadEnded(InboundAdmission from, MemorySegment record) {
        ReadAnswer answer = ReadAnswer.parse(record);
        if (answer == null || !from.endAsk()) {
            return false;
        }
        completions.push(CompletionRing.READ_ENDED, 0, 0, new Answered(from.admission(), answer), null);
        return true;
    }

    @Override
    public RemoteKey keyOf(Domain domain, int regionId) {
        return regions.keyOf(domain, regionId);
    }

    @Override
    public boolean reachesAll(Domain domain) {
        return regions.reachesAll(domain);
    }
}
