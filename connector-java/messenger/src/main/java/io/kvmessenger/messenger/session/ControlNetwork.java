package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.wire.ControlFrame;

/** Port: carries control frames. What happens on links comes back through {@code Messenger}'s {@code onLink…} inputs. */
public interface ControlNetwork {
    /** Starts to connect to a prefiller; {@code onLinkOpened} or {@code onLinkClosed} follows for the returned link. */
    long dial(String host, int port);

    /** Hands a frame over; frames of one link arrive in order or the link closes. Never blocks. */
    void send(long link, ControlFrame frame);

    /** The peer has proven itself: its next frames may be as long as the protocol allows. */
    void trust(long link);

    /** Closes a link after what was sent on it; {@code onLinkClosed} follows unless it was closed already. */
    void close(long link);
}
