package io.kvmessenger.transfer;

/**
 * A peer's window that this engine may write to: what {@link TransferEngine#allow} returns and what requests name, until
 * {@link TransferEngine#disallow}.
 *
 * <p>One for each call of {@code allow}, equal to itself only. Which slot and generation its writes carry is the engine's
 * business: the engine may move the window to another generation while requests that name it are under way.
 */
public interface RemoteWindow {
    /** Slot and generation that a write posted now carries, weight zero. For engines and transports. */
    int imm();
}
