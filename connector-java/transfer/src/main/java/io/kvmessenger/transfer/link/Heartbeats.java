package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.socket.ControlStream;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Pulse;
import java.lang.foreign.MemorySegment;

/**
 * The heartbeats that both sides of a control socket give each other: an idle connection stays known to firewalls, and
 * one that was forgotten all the same is found before it is needed.
 *
 * <p>Worker only. Unix sockets have none, as nothing lies between their ends, and nor have peers of an earlier version.
 * It ends no link.
 */
final class Heartbeats {
    private static final long NS_PER_SECOND = 1_000_000_000L;

    private final long limitNs;
    /** Null if none are exchanged. */
    private final Pulse pulse;

    private Heartbeats(long limitNs, Pulse pulse) {
        this.limitNs = limitNs;
        this.pulse = pulse;
    }

    /** For a socket opened by this hello. */
    static Heartbeats of(Hello said, boolean local, long limitNs, long nowNs) {
        return new Heartbeats(limitNs, local || !said.givesHeartbeats() ? null : new Pulse(limitNs, nowNs));
    }

    static Heartbeats none() {
        return new Heartbeats(0, null);
    }

    void onHeard() {
        if (pulse != null) {
            pulse.onHeard();
        }
    }

    /** Gives a heartbeat if one is due; returns whether the peer has given none for too long. */
    boolean exchange(ControlStream control, long nowNs) {
        if (pulse == null) {
            return false;
        }
        pulse.look(nowNs);
        if (pulse.isDue(nowNs) && control.offer(ControlRecord.ALIVE, MemorySegment.NULL)) {
            pulse.onGiven(nowNs);
        }
        if (pulse.isSilent()) {
            // What has arrived and was not read yet counts.
            control.drain(nowNs);
        }
        return pulse.isSilent();
    }

    String silence() {
        return "nothing came from the peer on the control socket for " + (double) limitNs / NS_PER_SECOND + " s";
    }
}
