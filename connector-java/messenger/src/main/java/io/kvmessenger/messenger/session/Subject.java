package io.kvmessenger.messenger.session;

import com.google.protobuf.ByteString;

/**
 * What a messenger and its peers move between them, as the handshake sees it: a name and an opaque description. Its owner
 * says whether two descriptions fit.
 *
 * <p>Asked by the messenger's thread. It knows no link and ends none.
 */
public interface Subject {
    /** Its name on the wire, the same on both sides: one word. */
    String kind();

    /** This side's description, for peers. */
    ByteString description();

    /**
     * Compares a peer's description with this side's.
     *
     * @param peerReceives whether the peer is the one that is written to
     */
    Fit fit(ByteString peerDescription, String peerName, boolean peerReceives);

    /** What a comparison has led to. */
    sealed interface Fit {}

    /** Both fit together. */
    record Fits(PeerSubject peer) implements Fit {}

    /**
     * They do not, and the link is refused.
     *
     * @param field that differs
     * @param sentence for both sides' logs: what differs, and the remedy
     */
    record Differs(String field, String sentence) implements Fit {}
}
