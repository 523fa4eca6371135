package io.kvmessenger.testkit.sim;

import java.util.ArrayDeque;
import java.util.Map;
import java.util.TreeMap;

/** The events in order: a hash over all of them, and the last ones as text, without heartbeats. */
final class Trace {
    private static final int EVENTS_KEPT = Integer.getInteger("kvmessenger.sim.events", 200);

    private record Event(long timeNs, String process, String kind, String detail) {
        String line() {
            return String.format("%14.3f us  %-6s  %-12s  %s", timeNs / 1e3, process, kind, detail);
        }
    }

    private final SimulatedClock clock;
    private final ArrayDeque<Event> last = new ArrayDeque<>();
    private long hash = 0xCBF29CE484222325L;
    private long count;
    private final Map<String, Integer> countByKind = new TreeMap<>();

    Trace(SimulatedClock clock) {
        this.clock = clock;
    }

    void add(String process, String kind, String detail) {
        mix(clock.nowNs());
        mix(process.hashCode());
        mix(kind.hashCode());
        mix(detail.hashCode());
        count++;
        countByKind.merge(mark(kind, detail), 1, Integer::sum);
        if (detail.endsWith(" HEARTBEAT")) {
            return;
        }
        if (last.size() == EVENTS_KEPT) {
            last.removeFirst();
        }
        last.addLast(new Event(clock.nowNs(), process, kind, detail));
    }

    long hash() {
        return hash;
    }

    /** Number of events by kind: shows which branches a set of seeds has reached. */
    Map<String, Integer> countByKind() {
        return countByKind;
    }

    /** Distinguishes frames and failures by their first words. */
    private static String mark(String kind, String detail) {
        return switch (kind) {
            case "send" ->
                kind + " " + detail.substring(detail.indexOf(' ') + 1).split("[ ]", 2)[0] + reasonIn(detail);
            default -> kind;
        };
    }

    private static String reasonIn(String detail) {
        int colon = detail.indexOf(':');
        return detail.contains("CANNOT_DELIVER ") ? detail.substring(detail.lastIndexOf(' ', colon), colon) : "";
    }

    long count() {
        return count;
    }

    String lastEvents() {
        StringBuilder lines = new StringBuilder();
        last.forEach(event -> lines.append(event.line()).append('\n'));
        return lines.toString();
    }

    private void mix(long value) {
        hash = (hash ^ value) * 0x100000001B3L;
        hash ^= hash >>> 31;
    }
}
