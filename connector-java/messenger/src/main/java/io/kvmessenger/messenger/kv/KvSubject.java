package io.kvmessenger.messenger.kv;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import io.kvmessenger.kvlayout.Compatibility;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.Mismatch;
import io.kvmessenger.messenger.session.Subject;
import io.kvmessenger.messenger.wire.Geometry;
import io.kvmessenger.messenger.wire.GeometryWire;
import java.util.Optional;

/** The KV cache of one messenger's ranks: peers fit if their geometries do. Immutable; safe from any thread. */
public final class KvSubject implements Subject {
    public static final String KIND = "kv_cache";

    private final KvGeometry geometry;

    public KvSubject(KvGeometry geometry) {
        this.geometry = geometry;
    }

    @Override
    public String kind() {
        return KIND;
    }

    @Override
    public ByteString description() {
        return GeometryWire.encode(geometry).toByteString();
    }

    @Override
    public Fit fit(ByteString peerDescription, String peerName, boolean peerReceives) {
        KvGeometry peer;
        try {
            peer = GeometryWire.decode(Geometry.parseFrom(peerDescription));
        } catch (IllegalArgumentException | InvalidProtocolBufferException e) {
            return new Differs("geometry", "the KV geometry of " + peerName + " is invalid: " + e.getMessage());
        }
        Optional<Mismatch> mismatch = peerReceives ? mismatch(geometry, peer) : mismatch(peer, geometry);
        return mismatch.<Fit>map(found -> new Differs(found.field(), found.sentence()))
                .orElseGet(() -> new Fits(new KvPeer(geometry, peer)));
    }

    /** If a side lists only some of its engine's ranks, the engine's other messengers may serve what is missing. */
    private static Optional<Mismatch> mismatch(KvGeometry source, KvGeometry target) {
        return listsAllRanks(source) && listsAllRanks(target)
                ? Compatibility.check(source, target)
                : Compatibility.checkPages(source, target);
    }

    private static boolean listsAllRanks(KvGeometry geometry) {
        return EngineRanks.of(geometry).complete();
    }
}
