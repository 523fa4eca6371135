package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.wire.ControlFrame;

/** Port: carries control frames. Events of links arrive through {@code Messenger}'s {@code onLink…} methods. */
public interface ControlNetwork {
    /** Starts to connect to a prefiller; {@code onLinkOpened} or {@code onLinkClosed} follows for the returned link. */
    long dial(String host, int port);

    /** Queues a frame. Frames of one link arrive in order, or the link closes. Never blocks. */
    void send(long link, ControlFrame frame);

    /** The peer is proven: from its next frame on, the protocol's full frame length is allowed. */
    void trust(long link);

    /** Closes a link after sending its queued frames; {@code onLinkClosed} follows unless it was closed already. */
    void close(long link);
}
