package io.kvmessenger.connector;

import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.NanoClock;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.HashMap;
import java.util.Map;

/**
 * Logs bugs of the messenger: each kind once with its stack trace, then its count, at most once in {@link #REPEAT_NS},
 * so that a fault in every duty cycle does not flood the log.
 *
 * <p>Owned by the messenger's thread. Faults are of one kind if class and line are equal.
 */
final class FaultLog {
    static final long REPEAT_NS = 60_000_000_000L;
    /** Limit on distinct kinds; those beyond it are counted as one. */
    static final int KINDS_MAX = 64;

    private static final String OTHERS = "other faults";

    private final Map<String, Kind> kinds = new HashMap<>();
    private final EngineLog log;
    private final NanoClock clock;

    private static final class Kind {
        long count;
        long reportedCount;
        long reportedNs;
    }

    FaultLog(EngineLog log, NanoClock clock) {
        this.log = log;
        this.clock = clock;
    }

    void add(Throwable fault) {
        String name = nameOf(fault);
        if (!kinds.containsKey(name) && kinds.size() >= KINDS_MAX) {
            name = OTHERS;
        }
        Kind kind = kinds.computeIfAbsent(name, unknown -> new Kind());
        long nowNs = clock.nowNs();
        kind.count++;
        if (kind.count == 1) {
            report(kind, nowNs, "a bug in the messenger: " + traceOf(fault));
        } else if (nowNs - kind.reportedNs >= REPEAT_NS) {
            report(
                    kind,
                    nowNs,
                    "a bug in the messenger, " + (kind.count - kind.reportedCount) + " times again: " + fault);
        }
    }

    private void report(Kind kind, long nowNs, String message) {
        kind.reportedCount = kind.count;
        kind.reportedNs = nowNs;
        log.log(EngineLog.Level.ERROR, message);
    }

    private static String nameOf(Throwable fault) {
        StackTraceElement[] trace = fault.getStackTrace();
        return fault.getClass().getName() + (trace.length == 0 ? "" : trace[0]);
    }

    private static String traceOf(Throwable fault) {
        StringWriter trace = new StringWriter();
        fault.printStackTrace(new PrintWriter(trace));
        return trace.toString();
    }
}
