package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.messenger.wire.ControlFrame;
import java.util.HashMap;
import java.util.Map;

/** Which links end because a decoder with nothing under way has left: such an end is no fault, and excuses nothing. */
final class LeftLinks {
    /** By the two processes, of which the first hears of an end: how many ends are to come. */
    private final Map<String, Integer> ends = new HashMap<>();

    void frameSent(String from, String to, ControlFrame frame) {
        if (frame.getGoodbye().getIdle()) {
            ends.merge(from + " " + to, 1, Integer::sum);
            ends.merge(to + " " + from, 1, Integer::sum);
        }
    }

    /** Whether this is one of them; each is taken once. */
    boolean take(String process, String peer) {
        String key = process + " " + peer;
        int left = ends.getOrDefault(key, 0);
        ends.put(key, Math.max(0, left - 1));
        return left > 0;
    }
}
