package io.kvmessenger.transfer;

import java.util.List;

/**
 * Peers that are written to together: created once by {@link TransferEngine#group}, named by every
 * {@link GroupRequest}.
 *
 * <p>It holds no resources and need not be closed. A lost member keeps its index; later requests fail for that member
 * alone.
 */
public interface PeerGroup {
    /** For logs and errors. */
    String name();

    /** In the order in which requests name them. */
    List<Peer> members();
}
