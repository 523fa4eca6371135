package io.kvmessenger.transfer.samehost;

import io.kvmessenger.transfer.spi.InboundChannel;

/** Hands the memory of this engine's regions to one peer that is proven and ready. Worker only. */
public interface RegionSender {
    /** Continues to offer regions ahead of requests, while there is room; returns whether all have been offered. */
    boolean offer(InboundChannel channel);

    /** Answers a peer's request for a region; false when there is no room now: the request is offered again. */
    boolean answer(int regionId, InboundChannel channel);
}
