package io.kvmessenger.messenger;

import java.util.List;

/** When a prefill's chunks were computed and left for one decoder, on the machine's monotonic clock; 0 = not reached. */
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
        List<ChunkTimeline> chunks) {
    public PrefillTimeline {
        chunks = List.copyOf(chunks);
    }

    /** When the first write was submitted; 0 = none was. */
    public long firstSubmittedNs() {
        return chunks.stream()
                .mapToLong(ChunkTimeline::firstSubmittedNs)
                .filter(ns -> ns != 0)
                .min()
                .orElse(0);
    }

    /** When the last forward pass ended. */
    public long forwardEndNs() {
        return chunks.stream().mapToLong(ChunkTimeline::forwardEndNs).max().orElse(0);
    }

    /** Layers of chunks that have left. */
    public int layersSent() {
        return chunks.stream().mapToInt(ChunkTimeline::layersSent).sum();
    }

    /** Layer writes that had left before the forward pass of their chunk ended. */
    public int layersSentEarly() {
        return chunks.stream().mapToInt(ChunkTimeline::layersSentEarly).sum();
    }
}
