package io.kvmessenger.messenger.port;

/**
 * What the chunks of a prompt did, all together; times are on the machine's monotonic clock, 0 = not reached.
 *
 * @param chunkCount forward passes that computed a part of the prompt
 * @param firstSubmittedNs when the first write was submitted
 * @param forwardEndNs when the last forward pass ended
 * @param layersSent layers of chunks that have left
 * @param layersSentEarly those that had left before the forward pass of their chunk ended
 */
public record ChunkSums(
        int chunkCount, long firstSubmittedNs, long forwardEndNs, long layersSent, long layersSentEarly) {}
