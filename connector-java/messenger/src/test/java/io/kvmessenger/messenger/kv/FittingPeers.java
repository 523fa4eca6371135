package io.kvmessenger.messenger.kv;

import io.kvmessenger.kvlayout.KvGeometry;

/** Peers whose handshake is complete, for tests of one class. */
public final class FittingPeers {
    private FittingPeers() {}

    /** Gives the session a peer of this geometry. */
    public static void introduce(KvSession session, KvGeometry peer) {
        if (session.misfit(KvDescription.encode(peer)).isPresent()) {
            throw new AssertionError("the peer's geometry does not fit");
        }
    }
}
