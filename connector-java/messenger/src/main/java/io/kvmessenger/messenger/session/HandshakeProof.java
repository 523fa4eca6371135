package io.kvmessenger.messenger.session;

import com.google.protobuf.ByteString;
import com.google.protobuf.MessageLite;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/**
 * Proves knowledge of the shared secret, and that both sides have seen the same handshake: HMAC-SHA256, with a key of the
 * session and of the side that proves, over all that was said before. Pure.
 */
final class HandshakeProof {
    static final int NONCE_LENGTH_BYTES = 32;

    private static final String HASH = "SHA-256";

    private HandshakeProof() {}

    /** What was said before, and one message more; an empty array is the beginning. */
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
     * @param keys of the session; null when there is no secret, and then the proof is empty
     */
    static ByteString of(SessionKeys keys, String side, byte[] transcript) {
        return keys == null
                ? ByteString.EMPTY
                : ByteString.copyFrom(
                        SessionKeys.mac(keys.keyFor("proof of the " + side)).doFinal(transcript));
    }

    /** Compares without telling, by its duration, where two proofs differ. */
    static boolean matches(ByteString expected, ByteString presented) {
        return MessageDigest.isEqual(expected.toByteArray(), presented.toByteArray());
    }
}
