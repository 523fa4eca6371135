package io.kvmessenger.messenger.session;

/** Ends handshakes for tests of other packages. */
public final class ReadySessions {
    private ReadySessions() {}

    public static void ready(Session session) {
        session.become(Session.State.READY);
    }
}
