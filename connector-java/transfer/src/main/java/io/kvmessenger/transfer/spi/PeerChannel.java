package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;

/**
 * What the two ends of one domain's paths say to each other over the control socket of their peer. Worker only.
 *
 * <p>The kinds of records from {@link #FIRST_KIND} to {@link #LAST_KIND} are the domain's own.
 */
public interface PeerChannel {
    int FIRST_KIND = 16;
    int LAST_KIND = 255;

    /** Writer: it has closed its paths, and nothing of it writes any more. Of use where a hang-up does not say as much. */
    int QUIET_KIND = 15;

    /** No descriptor came with the record. */
    int NO_DESCRIPTOR = -1;

    /** The writer's end of the paths. */
    interface Reader {
        void onRecord(int kind, MemorySegment payload, long nowNs);

        /** The target does not take the paths. */
        void onRefused(TransferFault fault, String detail);

        /** Reading for it failed by an error of this engine. */
        void onError(Throwable error);
    }

    /** Which of the peer's attachments this is: the same number at both ends. */
    int number();

    /** Whether descriptors can travel with records. */
    boolean carriesDescriptors();

    /** Sends a record, if there is room for it now. */
    boolean tell(int kind, MemorySegment payload);

    /** The same with descriptors, which stay the caller's; only while nothing else waits to be sent. */
    boolean tell(int kind, MemorySegment payload, int... descriptors);
}
