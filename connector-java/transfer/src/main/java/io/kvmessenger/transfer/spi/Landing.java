package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;

/**
 * Host memory into which one path receives bytes for device memory, and from which they are copied on: for transports
 * whose sockets cannot reach a device. Arrivals are counted only after the copy is done.
 *
 * <p>Worker only. It checks nothing: each byte's target was checked before it was received. Room is held while bytes
 * are received within one duty cycle and while they are copied, so that a peer that stops in the middle of a write
 * holds none.
 */
public interface Landing {
    interface Events {
        /** The path's oldest unreported frame is in place and counted, or was discarded. */
        void onTaken(long payloadBytes);

        /** {@link Landing#roomBytes} or {@link Landing#takesFrames} has refused, and may succeed now. */
        void onRoom();

        /** A device failed to copy: the frames concerned are not counted, and nothing more of them is copied. */
        void onCopyFailed(String detail);

        /** Reporting to the path failed by an error of this engine. */
        void onError(Throwable error);
    }

    /** Sets the device memory that the next bytes are for. */
    void begin(Memory.Device target);

    /** How many bytes may land now; 0 when there is no room, and then {@link Events#onRoom} follows. */
    long roomBytes();

    /** Address at which they land; to be called after {@link #roomBytes}. */
    long address();

    /** Assigns the next of the landed bytes to a device address. */
    void copyTo(long deviceAddress, long lengthBytes);

    /** All bytes of a frame have been passed on: the landing will release the window and count the frame. */
    void finish(OpenWindow window, int imm, long weight, int pageCount, long payloadBytes);

    /** A frame without a copy was counted or discarded; it is reported as taken after the frames before it. */
    void passBy(long payloadBytes);

    /** Copies no more of a half-received frame: the landing ends its hold on the window when queued copies are done. */
    void abandon(OpenWindow window);

    /** Whether another frame may be received; if not, {@link Events#onRoom} follows. */
    boolean takesFrames();

    /** Queues the copies of what has landed; called at the end of receiving in a duty cycle. */
    void copyLanded();

    /** Whether nothing is being copied, and every finished frame has been reported as taken. */
    boolean isSettled();

    /** No byte lands any more; what has landed is still copied and counted. */
    void close();
}
