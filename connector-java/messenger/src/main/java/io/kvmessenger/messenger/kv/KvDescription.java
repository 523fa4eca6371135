package io.kvmessenger.messenger.kv;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import io.kvmessenger.kvlayout.Compatibility;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.Mismatch;
import io.kvmessenger.messenger.wire.Geometry;
import io.kvmessenger.messenger.wire.GeometryWire;
import java.util.Optional;

/** A KV cache as the handshake describes it: peers fit if their geometries do. Pure. */
public final class KvDescription {
    /** The kind of the subject, on the wire. */
    public static final String KIND = "kv_cache";

    private KvDescription() {}

    public static ByteString encode(KvGeometry geometry) {
        return GeometryWire.encode(geometry).toByteString();
    }

    /** @throws IllegalArgumentException for a malformed description */
    static KvGeometry decode(ByteString description) {
        try {
            return GeometryWire.decode(Geometry.parseFrom(description));
        } catch (InvalidProtocolBufferException e) {
            throw new IllegalArgumentException(e.getMessage(), e);
        }
    }

    /** If a side lists only some of its engine's ranks, the engine's other messengers may serve what is missing. */
    static Optional<Mismatch> mismatch(KvGeometry source, KvGeometry target) {
        return listsAllRanks(source) && listsAllRanks(target)
                ? Compatibility.check(source, target)
                : Compatibility.checkPages(source, target);
    }

    private static boolean listsAllRanks(KvGeometry geometry) {
        return EngineRanks.of(geometry).complete();
    }
}
