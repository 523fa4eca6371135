package io.kvmessenger.transfer.samehost;

import io.kvmessenger.transfer.spi.InboundChannel;

/** Hands the memory of this engine's regions to one peer that has proven itself and is ready. Worker only. */
public interface RegionSender {
    /** Goes on with what the peer may map before it is asked for, as far as there is room for it; returns whether all is told. */
    boolean offer(InboundChannel channel);

    /** Answers the peer that wants a region; false when there is no room for it now: it is asked again. */
    boolean answer(int regionId, InboundChannel channel);
}
