package io.kvmessenger.testkit.sim;

import java.util.LinkedHashSet;
import java.util.Set;

/**
 * The end of what an engine does at several of its messengers: when each of them has ended its part, or has died. One
 * thread.
 */
final class JointEnd {
    private final Set<SimulatedNode> open = new LinkedHashSet<>();
    private final boolean firstSuffices;
    private final Runnable onEnd;
    private boolean over;

    /** @param firstSuffices a bug: the end of one part is taken for that of all */
    JointEnd(boolean firstSuffices, Runnable onEnd) {
        this.firstSuffices = firstSuffices;
        this.onEnd = onEnd;
    }

    /** A messenger takes part; all of them are added before the first one ends. */
    void add(SimulatedNode node) {
        open.add(node);
        node.whenDead(() -> end(node));
    }

    /** The messenger's part is over. */
    void end(SimulatedNode node) {
        if (open.remove(node) && !over && (firstSuffices || open.isEmpty())) {
            over = true;
            onEnd.run();
        }
    }
}
