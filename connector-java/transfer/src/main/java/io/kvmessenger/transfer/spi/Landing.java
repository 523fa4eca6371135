package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.Memory;

/**
 * Host memory where what one path receives for a device's memory lands, and from where it is copied on: for transports whose
 * sockets cannot reach a device. What has landed is counted when the copy behind it is done, never before.
 *
 * <p>Worker only. It checks nothing: each byte's target was checked before it was received. Room is held while bytes are received in
 * one duty cycle and while they are copied, so that a peer that stops in the middle of a write holds none.
 */
public interface Landing {
    /** What the path is told. */
    interface Events {
        /** The oldest frame of the path that was not told yet is in place and counted, or was discarded. */
        void onTaken(long payloadBytes);

        /** There was no room, and may be now. */
        void onRoom();

        /** A device did not copy what it was given: what it was for is not counted, and nothing of it is copied any more. */
        void onCopyFailed(String detail);

        /** Telling the path failed by an error of this engine. */
        void onError(Throwable error);
    }

    /** The bytes that land next are for this memory. */
    void begin(Memory.Device target);

    /** How many bytes may land now; 0 when there is no room: {@link Events#onRoom} follows. */
    long roomBytes();

    /** Where they land; after {@link #roomBytes}. */
    long address();

    /** The next of the bytes that have landed belong there. */
    void copyTo(long deviceAddress, long lengthBytes);

    /** All bytes of a frame have been handed over: from now on the landing ends its hold on the window, and counts it. */
    void finish(OpenWindow window, int imm, long weight, int pageCount, long payloadBytes);

    /** A frame that needs no copy was counted, or discarded: it is told as taken after those before it. */
    void passBy(long payloadBytes);

    /** No more of a half received frame is copied: the landing ends its hold on the window when what was queued is done. */
    void abandon(OpenWindow window);

    /** Whether another frame may be received; {@link Events#onRoom} follows where not. */
    boolean takesFrames();

    /** What has landed is copied on; called when no more is received in this duty cycle. */
    void copyLanded();

    /** Whether nothing is being copied, and every frame that was finished has been told as taken. */
    boolean isSettled();

    /** No byte lands any more; what has landed is still copied and counted. */
    void close();
}
