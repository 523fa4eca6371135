package io.kvmessenger.messenger.prefill;

import io.kvmessenger.messenger.port.ChunkTimeline;

/**
 * A prompt's part of a forward pass in flight: tokens before {@code endToken} are in place in every layer that the step
 * has completed.
 */
record RunningChunk(StepInFlight step, int endToken, ChunkTimeline timeline) {}
