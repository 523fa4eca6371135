package io.kvmessenger.messenger.port;

/**
 * Versions of the protocol that one side speaks: all from the oldest to the newest. A value.
 *
 * <p>A build from before sides agreed upon a version says one, its oldest, and demands that very number of its peer: so a side is
 * named by its oldest version, and says its newest beside it.
 */
public record ProtocolVersions(int oldest, int newest) {
    /** Of no two sides: they have none in common. */
    public static final int NONE = 0;

    public static final ProtocolVersions OURS =
            new ProtocolVersions(ProtocolLimits.PROTOCOL_VERSION_OLDEST, ProtocolLimits.PROTOCOL_VERSION);

    /** What a peer has said; 0 for its newest is the silence of an earlier build. */
    public static ProtocolVersions said(int oldest, int newest) {
        return new ProtocolVersions(oldest, Math.max(oldest, newest));
    }

    /** The newest version that both sides speak; {@link #NONE} when there is none. */
    public int agreedWith(ProtocolVersions peer) {
        int newestOfBoth = Math.min(newest, peer.newest);
        return newestOfBoth >= Math.max(oldest, peer.oldest) ? newestOfBoth : NONE;
    }

    /** In a sentence. */
    @Override
    public String toString() {
        return oldest == newest ? Integer.toString(oldest) : oldest + " to " + newest;
    }
}
