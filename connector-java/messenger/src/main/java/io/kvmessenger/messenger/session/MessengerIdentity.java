package io.kvmessenger.messenger.session;

/**
 * The name of this process on the control channel. A restarted process has another incarnation and is another peer.
 *
 * @param sharedSecret UTF-8 bytes; empty when links are not authenticated (loopback only)
 */
public record MessengerIdentity(String engineId, long incarnation, byte[] sharedSecret) {}
