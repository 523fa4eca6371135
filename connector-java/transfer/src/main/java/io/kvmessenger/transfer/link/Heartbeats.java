package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.socket.ControlRecord;
import io.kvmessenger.transfer.socket.ControlStream;
import io.kvmessenger.transfer.socket.Hello;
import io.kvmessenger.transfer.socket.Pulse;
import java.lang.foreign.MemorySegment;

/**
 * Heartbeats on a control socket, in both directions: firewalls keep an idle connection open, and a connection that was
 * dropped without notice is detected before it is needed.
 *
 * <p>Worker only. Not used on Unix sockets, nor with peers of an earlier version. The caller ends the link.
 */
final class Heartbeats {
    private static final long NS_PER_SECOND = 1_000_000_000L;

    private final long limitNs;
    /** Null if this socket has no heartbeats. */
    private final Pulse pulse;

    private Heartbeats(long limitNs, Pulse pulse) {
        this.limitNs = limitNs;
        this.pulse = pulse;
    }

    /** For a socket opened by this hello. */
    static Heartbeats of(Hello given, boolean local, long limitNs, long nowNs) {
        return new Heartbeats(limitNs, local || !given.givesHeartbeats() ? null : new Pulse(limitNs, nowNs));
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
