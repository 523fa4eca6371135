package io.kvmessenger.transfer.path;

import io.kvmessenger.transfer.spi.PeerChannel;
import java.lang.foreign.MemorySegment;

/** A record that goes to the peer once, as soon as there is room for it. Worker only. */
public final class OwedRecord {
    private final PeerChannel channel;
    private final int kind;
    private final MemorySegment payload;
    private boolean sent;

    public OwedRecord(PeerChannel channel, int kind, MemorySegment payload) {
        this.channel = channel;
        this.kind = kind;
        this.payload = payload;
    }

    /** Sends it unless it has been sent; returns whether it has. */
    public boolean send() {
        sent = sent || channel.report(kind, payload);
        return sent;
    }
}
