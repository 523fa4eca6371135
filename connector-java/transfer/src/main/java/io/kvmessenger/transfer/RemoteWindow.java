package io.kvmessenger.transfer;

/**
 * A peer's window that this engine may write to: returned by {@link TransferEngine#allow} and named by requests, until
 * {@link TransferEngine#disallow}.
 *
 * <p>Each call of {@code allow} returns a distinct object, equal only to itself. Slot and generation are internal to
 * the engine, which may move the window to another generation while requests that name it are in flight.
 */
public interface RemoteWindow {
    /** Slot and generation for a write posted now, with weight zero. For engines and transports only. */
    int imm();

    /** The class of all writes to it. */
    default TrafficClass trafficClass() {
        return TrafficClass.URGENT;
    }
}
