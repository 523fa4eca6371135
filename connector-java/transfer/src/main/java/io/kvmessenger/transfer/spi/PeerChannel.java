package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;

/**
 * Carries the records of one domain's paths between their two ends, over the control socket of the peer. Worker only.
 *
 * <p>Record kinds from {@link #FIRST_KIND} to {@link #LAST_KIND} are defined by the domain.
 */
public interface PeerChannel {
    int FIRST_KIND = 16;
    int LAST_KIND = 254;

    /** Writer: its paths are closed and nothing of it writes any more. Needed where a hang-up does not imply that; may be lost. */
    int QUIET_KIND = 15;

    /** No descriptor came with the record. */
    int NO_DESCRIPTOR = -1;

    /** Receives the records at the writer's end. */
    interface Reader {
        void onRecord(int kind, MemorySegment payload, long nowNs);

        /** The target refuses the paths. */
        void onRefused(TransferFault fault, String detail);

        /** Reading for it failed by an error of this engine. */
        void onError(Throwable error);
    }

    /** Names the peer's attachment for its sockets, the same at both ends; no other use of its number has this name. */
    int number();

    /** Whether descriptors can travel with records. */
    boolean carriesDescriptors();

    /** Sends a record if there is room for it now; else false. */
    boolean report(int kind, MemorySegment payload);

    /** The same with descriptors, which stay the caller's; only while nothing else waits to be sent. */
    boolean report(int kind, MemorySegment payload, int... descriptors);
}
