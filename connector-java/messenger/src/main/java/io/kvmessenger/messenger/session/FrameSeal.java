package io.kvmessenger.messenger.session;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import javax.crypto.Mac;

/**
 * Binds the frames of one direction to the handshake: HMAC-SHA256 over the frame and its sequence number, so that
 * without the secret no frame can be forged, altered, dropped, replayed or reordered unnoticed. Does not encrypt.
 *
 * <p>Owned by the messenger's thread.
 */
final class FrameSeal {
    private final Mac mac;
    private long position;

    FrameSeal(byte[] key) {
        mac = SessionKeys.mac(key);
    }

    ControlFrame seal(ControlFrame.Builder frame) {
        return frame.setSeal(ByteString.copyFrom(next(frame.clearSeal().build())))
                .build();
    }

    /** Whether the frame is the next one sent by the peer of the handshake. */
    boolean proves(ControlFrame frame) {
        byte[] expected = next(frame.toBuilder().clearSeal().build());
        return MessageDigest.isEqual(expected, frame.getSeal().toByteArray());
    }

    private byte[] next(ControlFrame unsealed) {
        mac.update(ByteBuffer.allocate(Long.BYTES).putLong(0, position++));
        return mac.doFinal(unsealed.toByteArray());
    }
}
