package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import java.lang.foreign.MemorySegment;

/** Over when the peer has gone or this end is closed; or at once when stopped, if this end can see to it. */
final class FakeInboundPaths implements InboundPaths {
    static final int READY = InboundChannel.FIRST_KIND;

    final InboundChannel channel;
    private final boolean endsItself;
    boolean outlivesHangUp;
    boolean ready;
    boolean gone;
    boolean closed;

    FakeInboundPaths(InboundChannel channel, boolean endsItself) {
        this.channel = channel;
        this.endsItself = endsItself;
    }

    @Override
    public boolean onRecord(int kind, MemorySegment payload, long nowNs) {
        if (kind == READY) {
            ready = true;
            channel.onReady();
        }
        return true;
    }

    @Override
    public void onQuiet() {
        outlivesHangUp = false;
    }

    @Override
    public boolean outlivesHangUp() {
        return outlivesHangUp;
    }

    @Override
    public void stop() {
        closed |= endsItself;
    }

    @Override
    public void onPeerGone() {
        gone = true;
    }

    @Override
    public boolean isOver() {
        return gone || closed || !ready;
    }

    @Override
    public void close() {
        closed = true;
    }
}
