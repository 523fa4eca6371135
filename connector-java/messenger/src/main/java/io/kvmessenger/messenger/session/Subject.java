package io.kvmessenger.messenger.session;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.wire.ControlFrame;

/**
 * What a messenger and its peers move: a KV cache, weights, a store. It describes itself in the handshake, owns the
 * frames that are not of the link, and what is kept for each session.
 *
 * <p>Called by the messenger's thread. It opens no link itself: {@link Sessions#dial} does.
 */
public interface Subject {
    /** Its name on the wire, a single word, the same on both sides. */
    String kind();

    /** This side's description, for peers. */
    ByteString description();

    /** What a peer is that listens, and one that dials: nouns for sentences and the status page. */
    Roles roles();

    /** A peer has opened a link: the state of its session. */
    Session accept(long link, String peerAddress);

    /** The rule that a frame of the subject, or its part of Attach, breaks; empty when it breaks none. Pure. */
    String broken(ControlFrame frame);

    /** The nouns for the two sides of a session. */
    record Roles(String listener, String dialler) {}
}
