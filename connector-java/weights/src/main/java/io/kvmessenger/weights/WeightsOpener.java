package io.kvmessenger.weights;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.EngineSubject;
import io.kvmessenger.messenger.SubjectOpener;
import io.kvmessenger.messenger.SubjectPorts;
import io.kvmessenger.messenger.SubjectRequest;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import java.util.HexFormat;

/** Opens messengers of weights, for a sender or for a host: docs/boundary.md. */
public final class WeightsOpener implements SubjectOpener {
    private static final String SENDER = "sender";
    private static final String HOST = "host";

    /** @param sends whether this side is the sender's, which listens */
    private record Request(boolean sends, ByteString manifestDigest, Memory memory) implements SubjectRequest {
        @Override
        public boolean listens() {
            return sends;
        }

        @Override
        public EngineSubject open(SubjectPorts ports) {
            Region region = ports.transfer().register(memory);
            return sends
                    ? new SenderEngine(manifestDigest, region, ports)
                    : new ReceiverEngine(manifestDigest, region, ports);
        }
    }

    @Override
    public String kind() {
        return WeightsSubject.KIND;
    }

    @Override
    public SubjectRequest read(Fields options, Fields subject) {
        String side = subject.text("side");
        if (!side.equals(SENDER) && !side.equals(HOST)) {
            throw new IllegalArgumentException(
                    "open.subject.side is '" + side + "', expected " + SENDER + " or " + HOST + ": name one of them");
        }
        Memory memory = Memory.hostAt(
                subject.integer("address"), subject.integer("lengthBytes"), (int) subject.integer("memfd"));
        return new Request(side.equals(SENDER), digest(subject.text("manifestDigest")), memory);
    }

    private static ByteString digest(String hex) {
        try {
            return ByteString.copyFrom(HexFormat.of().parseHex(hex));
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(
                    "open.subject.manifestDigest is '" + hex + "', expected a digest in hex", e);
        }
    }
}
