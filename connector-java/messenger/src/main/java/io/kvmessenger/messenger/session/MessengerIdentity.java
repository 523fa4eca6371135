package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.port.ProtocolVersions;

/**
 * The identity of this process on control links. A restarted process has another incarnation and is another peer.
 *
 * @param sharedSecret UTF-8 bytes; empty when links are not authenticated (loopback only)
 * @param versions of the protocol that it speaks
 */
public record MessengerIdentity(String engineId, long incarnation, byte[] sharedSecret, ProtocolVersions versions) {
    /** Speaks the versions of this build. */
    public MessengerIdentity(String engineId, long incarnation, byte[] sharedSecret) {
        this(engineId, incarnation, sharedSecret, ProtocolVersions.OURS);
    }
}
