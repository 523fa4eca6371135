package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.port.EngineLog;
import io.kvmessenger.messenger.port.NanoClock;
import java.util.Map;

/**
 * Logs why connections ended: one line per peer and reason within {@link #REPEAT_NS}, and at most {@link #LINES_MAX}
 * within that time, however often peers connect and whatever they send.
 *
 * <p>Owned by the messenger's thread.
 */
public final class PeerWarnings {
    static final long REPEAT_NS = 60_000_000_000L;
    static final int LINES_MAX = 32;

    private static final int KINDS_MAX = 256;

    private final EngineLog log;
    private final NanoClock clock;
    /** When each kind of warning was last logged. */
    private final Map<String, Long> loggedNs = new BoundedMap<>(KINDS_MAX);

    private long periodNs;
    private int linesInPeriod;

    public PeerWarnings(EngineLog log, NanoClock clock) {
        this.log = log;
        this.clock = clock;
        periodNs = clock.nowNs();
    }

    public void add(String peerAddress, String reason) {
        long nowNs = clock.nowNs();
        if (nowNs - periodNs >= REPEAT_NS) {
            periodNs = nowNs;
            linesInPeriod = 0;
        }
        String kind = kindOf(peerAddress, reason);
        Long last = loggedNs.get(kind);
        if ((last == null || nowNs - last >= REPEAT_NS) && linesInPeriod < LINES_MAX) {
            loggedNs.put(kind, nowNs);
            linesInPeriod++;
            log.log(EngineLog.Level.WARNING, "the connection with " + peerAddress + " ended: " + reason);
        }
    }

    /** Drops what varies between repetitions: each connection has another port, and reasons contain ports and times. */
    private static String kindOf(String peerAddress, String reason) {
        int port = peerAddress.lastIndexOf(':');
        String host = port < 0 ? peerAddress : peerAddress.substring(0, port);
        return host + ' ' + reason.replaceAll("[0-9]+", "#");
    }
}
