package io.kvmessenger.transfer;

import java.util.List;

/**
 * Peers that are written to together: made once by {@link TransferEngine#group}, named by every {@link GroupRequest}.
 *
 * <p>It holds nothing and needs no end. A member that is lost stays in its place; what is submitted afterwards fails for it
 * alone.
 */
public interface PeerGroup {
    /** For people. */
    String name();

    /** In the order in which requests name them. */
    List<Peer> members();
}
