package io.kvmessenger.testkit.echo;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.SubjectFrame;
import io.kvmessenger.transfer.RegionDescriptor;
import java.nio.ByteBuffer;

/** The frames of an echo, to and from bytes: big-endian numbers of a fixed length. Pure. */
final class EchoFrames {
    static final int ASK_LENGTH_BYTES = Long.BYTES + 2 * Integer.BYTES;
    static final int REGION_LENGTH_BYTES = 2 * Integer.BYTES + Long.BYTES + 1;

    /** Dialler to listener: write the first bytes of your region to the second half of mine. */
    record Ask(long id, int imm, int lengthBytes) {}

    private EchoFrames() {}

    static ControlFrame.Builder encode(Ask ask) {
        ByteBuffer bytes = ByteBuffer.allocate(ASK_LENGTH_BYTES)
                .putLong(ask.id())
                .putInt(ask.imm())
                .putInt(ask.lengthBytes());
        return ControlFrame.newBuilder()
                .setSubject(SubjectFrame.newBuilder().setPayload(ByteString.copyFrom(bytes.flip())));
    }

    static Ask ask(ControlFrame frame) {
        ByteBuffer bytes = frame.getSubject().getPayload().asReadOnlyByteBuffer();
        return new Ask(bytes.getLong(), bytes.getInt(), bytes.getInt());
    }

    static ByteString encode(RegionDescriptor region) {
        return ByteString.copyFrom(ByteBuffer.allocate(REGION_LENGTH_BYTES)
                .putInt(region.regionId())
                .putLong(region.lengthBytes())
                .putInt(region.version())
                .put((byte) (region.shareable() ? 1 : 0))
                .flip());
    }

    static RegionDescriptor region(ByteString encoded) {
        ByteBuffer bytes = encoded.asReadOnlyByteBuffer();
        return new RegionDescriptor(bytes.getInt(), bytes.getLong(), bytes.getInt(), bytes.get() == 1);
    }
}
