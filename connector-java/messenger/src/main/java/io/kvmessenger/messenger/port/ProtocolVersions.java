package io.kvmessenger.messenger.port;

/**
 * The versions of the protocol that one side speaks: all from the oldest to the newest. A value.
 *
 * <p>Builds from before version negotiation send a single version, their oldest, and require exactly that of their
 * peer. So the handshake carries the oldest version in that field, and the newest in another.
 */
public record ProtocolVersions(int oldest, int newest) {
    /** Returned by {@link #agreedWith} when two sides have no version in common. */
    public static final int NONE = 0;

    public static final ProtocolVersions OURS =
            new ProtocolVersions(ProtocolLimits.PROTOCOL_VERSION_OLDEST, ProtocolLimits.PROTOCOL_VERSION);

    /** The versions in a peer's frame; 0 as its newest means a build from before negotiation, which sends none. */
    public static ProtocolVersions given(int oldest, int newest) {
        return new ProtocolVersions(oldest, Math.max(oldest, newest));
    }

    /** The newest version that both sides speak; {@link #NONE} when there is none. */
    public int agreedWith(ProtocolVersions peer) {
        int newestOfBoth = Math.min(newest, peer.newest);
        return newestOfBoth >= Math.max(oldest, peer.oldest) ? newestOfBoth : NONE;
    }

    /** For use in a sentence. */
    @Override
    public String toString() {
        return oldest == newest ? Integer.toString(oldest) : oldest + " to " + newest;
    }
}
