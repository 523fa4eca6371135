package io.kvmessenger.messenger.port;

/**
 * Totals over all chunks of a prompt; times are on the machine's monotonic clock, 0 = not reached.
 *
 * @param chunkCount forward passes that computed a part of the prompt
 * @param firstSubmittedNs when the first write was submitted
 * @param forwardEndNs when the last forward pass ended
 * @param layersSent layers of chunks that have been sent completely
 * @param layersSentEarly those sent before the forward pass of their chunk ended
 */
public record ChunkSums(
        int chunkCount, long firstSubmittedNs, long forwardEndNs, long layersSent, long layersSentEarly) {}
