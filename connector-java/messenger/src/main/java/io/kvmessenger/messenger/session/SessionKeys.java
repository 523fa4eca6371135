package io.kvmessenger.messenger.session;

import com.google.protobuf.ByteString;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.util.Arrays;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * The keys of one session, one for each purpose, derived from the shared secret and both nonces: HKDF (RFC 5869) with
 * HMAC-SHA256. Without the secret none can be computed, and no two sessions share one.
 *
 * <p>A value. The secret must not be empty: then the keys would protect nothing.
 */
final class SessionKeys {
    private static final String ALGORITHM = "HmacSHA256";
    private static final byte FIRST_BLOCK = 1;

    private final byte[] pseudoRandom;

    private SessionKeys(byte[] pseudoRandom) {
        this.pseudoRandom = pseudoRandom;
    }

    static SessionKeys of(byte[] secret, byte[] prefillerNonce, byte[] decoderNonce) {
        if (secret.length == 0) {
            throw new AssertionError("keys of no secret");
        }
        byte[] salt = Arrays.copyOf(prefillerNonce, prefillerNonce.length + decoderNonce.length);
        System.arraycopy(decoderNonce, 0, salt, prefillerNonce.length, decoderNonce.length);
        return new SessionKeys(mac(salt).doFinal(secret));
    }

    /** A key of 32 bytes for one purpose only. */
    byte[] keyFor(String purpose) {
        return keyFor(purpose.getBytes(StandardCharsets.UTF_8));
    }

    byte[] keyFor(byte[] purpose) {
        Mac mac = mac(pseudoRandom);
        mac.update(purpose);
        mac.update(FIRST_BLOCK);
        return mac.doFinal();
    }

    /** Encrypts a secret of at most 32 bytes; a second call decrypts it. The pad serves one secret of a session. */
    ByteString concealed(ByteString secret) {
        byte[] concealed = secret.toByteArray();
        byte[] pad = keyFor("admission key");
        for (int i = 0; i < concealed.length; i++) {
            concealed[i] ^= pad[i];
        }
        return ByteString.copyFrom(concealed);
    }

    static Mac mac(byte[] key) {
        try {
            Mac mac = Mac.getInstance(ALGORITHM);
            mac.init(new SecretKeySpec(key, ALGORITHM));
            return mac;
        } catch (GeneralSecurityException e) {
            throw new AssertionError("every Java runtime has " + ALGORITHM, e);
        }
    }
}
