package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TrafficClass;
import java.util.List;

/**
 * What one peer has queued, as it is reported to the links of its paths.
 *
 * <p>Worker only. A peer without a path has nothing on any link.
 */
final class PeerLoad {
    private static final TrafficClass[] CLASSES = TrafficClass.values();

    private final PeerWrites writes;
    private final long[] queuedBytes = new long[TrafficClass.COUNT];
    private final long[] endedBytes = new long[TrafficClass.COUNT];
    private List<LinkLoad> links = List.of();

    PeerLoad(PeerWrites writes) {
        this.writes = writes;
    }

    /** Reports what has changed; {@code now} are the links of the open paths, each once. */
    void report(List<LinkLoad> now, long nowNs) {
        if (!now.equals(links)) {
            withdraw(nowNs);
            links = now;
        }
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            long queued = links.isEmpty() ? 0 : writes.queuedBytes(at);
            long ended = writes.endedBytes(at);
            if (queued != queuedBytes[at] || ended != endedBytes[at]) {
                report(at, queued, ended, nowNs);
            }
        }
    }

    private void report(int at, long queued, long ended, long nowNs) {
        for (int i = 0; i < links.size(); i++) {
            if (queued != queuedBytes[at]) {
                links.get(i).onQueued(at, queued - queuedBytes[at], nowNs);
                links.get(i).onPeers(at, Long.signum(queued) - Long.signum(queuedBytes[at]));
            }
            if (ended != endedBytes[at]) {
                links.get(i).onEnded(at, ended - endedBytes[at], nowNs);
            }
        }
        queuedBytes[at] = queued;
        endedBytes[at] = ended;
    }

    /** The peer has nothing on its links any more. */
    void withdraw(long nowNs) {
        for (int at = 0; at < TrafficClass.COUNT; at++) {
            for (int i = 0; i < links.size() && queuedBytes[at] != 0; i++) {
                links.get(i).onQueued(at, -queuedBytes[at], nowNs);
                links.get(i).onPeers(at, -1);
            }
            queuedBytes[at] = 0;
        }
        links = List.of();
    }

    /** The least urgent class that the peer has writes of; urgent if it has none. */
    TrafficClass slowest() {
        for (int at = TrafficClass.COUNT - 1; at > 0; at--) {
            if (queuedBytes[at] > 0) {
                return CLASSES[at];
            }
        }
        return TrafficClass.URGENT;
    }

    /** Whether the peer has writes that may have to yield: when they need not any more, no event says so. */
    boolean yields() {
        TrafficClass slowest = slowest(); // the most urgent never is contended
        for (int i = 0; i < links.size(); i++) {
            if (links.get(i).isContended(slowest)) {
                return true;
            }
        }
        return false;
    }

    /** Whether the peer has writes of two classes. */
    boolean isMixed() {
        int count = 0;
        for (long each : queuedBytes) {
            count += each > 0 ? 1 : 0;
        }
        return count > 1;
    }
}
