package io.kvmessenger.messenger.session;

/** A peer's side of a {@link Subject} that fits this side's. Opaque to the session, which only stores it. */
public interface PeerSubject {}
