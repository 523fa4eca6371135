package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand;
import java.util.ArrayList;
import java.util.List;

/**
 * A forward pass of a prefiller's engine: what it computes, and its range of the layer counter. State only, for
 * {@link SimulatedPrefillEngine} and {@link SimulatedDevice}.
 */
final class ForwardPass {
    /** A chunk of one prompt. */
    record Part(String request, PassShare share, int endToken) {}

    /** Its number if the messenger is told about it before it runs, else 0. */
    final long step;
    /** As the messenger is told about them. */
    final List<EngineCommand.Chunk> chunks = new ArrayList<>();

    final List<Part> parts = new ArrayList<>();
    /** Number of computed layers that are counted. */
    final int hookedCount;
    /** Number of layers that are computed; fewer than all if it fails. */
    final int computedCount;

    final boolean fails;
    /** Number of layers complete on all ranks. */
    int settledCount;
    /** The counter's value before its first increment; known when it is queued. */
    long counterStart;
    /** The counter's value after it has ended or failed. */
    long counterEnd;

    ForwardPass(long step, int hookedCount, int computedCount, boolean fails) {
        this.step = step;
        this.hookedCount = hookedCount;
        this.computedCount = computedCount;
        this.fails = fails;
    }

    boolean reported() {
        return step > 0;
    }

    /** A prompt has given its pages back; what other prompts share of them is still computed. */
    void giveUp(String request, List<PrefixCache.Entry> entries) {
        for (Part part : parts) {
            if (part.request().equals(request)) {
                part.share().giveUp(entries);
            }
        }
    }
}
