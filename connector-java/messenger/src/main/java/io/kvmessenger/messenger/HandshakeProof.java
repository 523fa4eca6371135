package io.kvmessenger.messenger;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Proves knowledge of the shared secret without sending it: HMAC-SHA256 over the side's name and both nonces. Pure. */
final class HandshakeProof {
    static final int NONCE_LENGTH_BYTES = 32;

    private HandshakeProof() {}

    /** The proof of one side; empty when there is no secret. */
    static byte[] of(byte[] secret, String side, byte[] prefillerNonce, byte[] decoderNonce) {
        if (secret.length == 0) {
            return new byte[0];
        }
        try {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(secret, "HmacSHA256"));
            mac.update(side.getBytes(StandardCharsets.UTF_8));
            mac.update((byte) 0);
            mac.update(prefillerNonce);
            mac.update(decoderNonce);
            return mac.doFinal();
        } catch (GeneralSecurityException e) {
            throw new AssertionError("every Java runtime has HmacSHA256", e);
        }
    }

    /** Compares without telling, by its duration, where two proofs differ. */
    static boolean matches(byte[] expected, byte[] presented) {
        return MessageDigest.isEqual(expected, presented);
    }
}
