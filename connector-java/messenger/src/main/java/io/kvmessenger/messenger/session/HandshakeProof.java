package io.kvmessenger.messenger.session;

import com.google.protobuf.ByteString;
import com.google.protobuf.MessageLite;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/**
 * Proves knowledge of the shared secret, and that both sides have seen the same handshake: HMAC-SHA256 over all earlier
 * messages, with a key specific to the session and to the proving side. Pure.
 */
final class HandshakeProof {
    static final int NONCE_LENGTH_BYTES = 32;

    private static final String HASH = "SHA-256";

    private HandshakeProof() {}

    /** Appends a message to the transcript of the earlier ones; an empty array begins a transcript. */
    static byte[] transcript(byte[] before, MessageLite message) {
        try {
            MessageDigest digest = MessageDigest.getInstance(HASH);
            digest.update(before);
            return digest.digest(message.toByteArray());
        } catch (NoSuchAlgorithmException e) {
            throw new AssertionError("every Java runtime has " + HASH, e);
        }
    }

    /**
     * The proof of one side.
     *
     * @param keys of the session; null without a secret, and then the proof is empty
     */
    static ByteString of(SessionKeys keys, String side, byte[] transcript) {
        return keys == null
                ? ByteString.EMPTY
                : ByteString.copyFrom(
                        SessionKeys.mac(keys.keyFor("proof of the " + side)).doFinal(transcript));
    }

    /** Compares in constant time: the duration does not depend on where the proofs differ. */
    static boolean matches(ByteString expected, ByteString presented) {
        return MessageDigest.isEqual(expected.toByteArray(), presented.toByteArray());
    }
}
