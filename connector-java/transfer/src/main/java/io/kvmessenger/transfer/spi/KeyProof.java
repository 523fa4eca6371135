package io.kvmessenger.transfer.spi;

import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.util.Arrays;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * What is disclosed of an admission key in its place: the name by which its target finds it, and proofs that a peer has
 * it, by HMAC-SHA256. None of them reveals the key or another one of them.
 *
 * <p>Pure functions; they allocate, so not for the data path.
 */
public final class KeyProof {
    public static final int NAME_LENGTH_BYTES = 16;
    public static final int LENGTH_BYTES = 32;

    private static final String ALGORITHM = "HmacSHA256";
    private static final byte[] NAMING = "admission name".getBytes(StandardCharsets.UTF_8);
    private static final byte[] SEALING = "admission seal".getBytes(StandardCharsets.UTF_8);
    private static final byte[] PROVING = "admission proof".getBytes(StandardCharsets.UTF_8);

    private KeyProof() {}

    /** The same for every connection; an eavesdropper learns only which connections belong together. */
    public static byte[] nameOf(byte[] key) {
        return Arrays.copyOf(mac(key, NAMING), NAME_LENGTH_BYTES);
    }

    /** @param statement fresh for each connection; everything in it but its last field has a fixed length */
    public static byte[] of(byte[] key, byte[] statement) {
        return mac(key, PROVING, statement);
    }

    /** A key for sealing what one side sends on one socket. Never disclosed, and not derivable from names or proofs. */
    public static byte[] sealKey(byte[] key, byte[] statement) {
        return mac(key, SEALING, statement);
    }

    private static byte[] mac(byte[] key, byte[]... parts) {
        try {
            Mac mac = Mac.getInstance(ALGORITHM);
            mac.init(new SecretKeySpec(key, ALGORITHM));
            for (byte[] part : parts) {
                mac.update(part);
            }
            return mac.doFinal();
        } catch (GeneralSecurityException e) {
            throw new AssertionError("every Java runtime has " + ALGORITHM, e);
        }
    }
}
