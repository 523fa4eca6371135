package io.kvmessenger.messenger.session;

import io.kvmessenger.messenger.port.ProtocolVersions;

/**
 * The name of this process on the control channel. A restarted process has another incarnation and is another peer.
 *
 * @param sharedSecret UTF-8 bytes; empty when links are not authenticated (loopback only)
 * @param versions what it speaks
 */
public record MessengerIdentity(String engineId, long incarnation, byte[] sharedSecret, ProtocolVersions versions) {
    /** Of this build. */
    public MessengerIdentity(String engineId, long incarnation, byte[] sharedSecret) {
        this(engineId, incarnation, sharedSecret, ProtocolVersions.OURS);
    }
}
