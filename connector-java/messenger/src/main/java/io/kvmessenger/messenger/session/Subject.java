package io.kvmessenger.messenger.session;

import com.google.protobuf.ByteString;

/**
 * What a messenger and its peers move, as the handshake sees it: a name and an opaque description. The implementation
 * decides whether two descriptions fit.
 *
 * <p>Called by the messenger's thread. An implementation has no access to links.
 */
public interface Subject {
    /** Its name on the wire, a single word, the same on both sides. */
    String kind();

    /** This side's description, for peers. */
    ByteString description();

    /**
     * Compares a peer's description with this side's.
     *
     * @param peerReceives whether the peer is the side that is written to
     */
    Fit fit(ByteString peerDescription, String peerName, boolean peerReceives);

    /** The result of a comparison. */
    sealed interface Fit {}

    /** The descriptions fit. */
    record Fits(PeerSubject peer) implements Fit {}

    /**
     * The descriptions do not fit, and the link is refused.
     *
     * @param field that differs
     * @param sentence for both sides' logs: what differs, and the remedy
     */
    record Differs(String field, String sentence) implements Fit {}
}
