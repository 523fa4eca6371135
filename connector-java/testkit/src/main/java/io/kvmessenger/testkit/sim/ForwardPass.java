package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.EngineCommand;
import java.util.ArrayList;
import java.util.List;

/**
 * A forward pass of a prefiller's engine: what it computes, and how it shows on the layer counter. State only, for {@link
 * SimulatedPrefillEngine} and {@link SimulatedDevice}.
 */
final class ForwardPass {
    /** A chunk of one prompt. */
    record Part(String request, PassShare share, int endToken) {}

    /** Its number if the messenger is told of it before it runs, else 0. */
    final long step;
    /** As the messenger hears of them. */
    final List<EngineCommand.Chunk> chunks = new ArrayList<>();

    final List<Part> parts = new ArrayList<>();
    /** Layers that are counted, of those that are computed. */
    final int hookedCount;
    /** Layers that are computed: fewer than there are when it fails. */
    final int computedCount;

    final boolean fails;
    /** Layers that all ranks have. */
    int settledCount;
    /** Where the counter stands before its first bump; known when it is queued. */
    long counterStart;
    /** The same when it is over, or has failed. */
    long counterEnd;

    ForwardPass(long step, int hookedCount, int computedCount, boolean fails) {
        this.step = step;
        this.hookedCount = hookedCount;
        this.computedCount = computedCount;
        this.fails = fails;
    }

    boolean told() {
        return step > 0;
    }

    /** A prompt has given its pages back: what others share of them is still computed. */
    void giveUp(String request, List<PrefixCache.Entry> entries) {
        for (Part part : parts) {
            if (part.request().equals(request)) {
                part.share().giveUp(entries);
            }
        }
    }
}
