package io.kvmessenger.messenger.port;

import java.util.List;

/**
 * When a prefill's chunks were computed and sent to one decoder, on the machine's monotonic clock; 0 = not reached.
 *
 * @param sums over all chunks
 * @param chunks the first and the last ones; all of them if there are few
 */
public record PrefillTimeline(
        String request,
        String transferId,
        int promptTokens,
        long pagesSent,
        long bytesSent,
        long grantedNs,
        long lastLeftNs,
        String transport,
        String decoder,
        ChunkSums sums,
        List<ChunkTimeline> chunks) {
    public PrefillTimeline {
        chunks = List.copyOf(chunks);
    }
}
