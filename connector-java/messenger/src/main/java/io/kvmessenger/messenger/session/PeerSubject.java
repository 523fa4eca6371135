package io.kvmessenger.messenger.session;

/** A peer's side of a {@link Subject} that fits this side's. What it holds its owner knows; a session only keeps it. */
public interface PeerSubject {}
