package io.kvmessenger.weights;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import io.kvmessenger.messenger.ServedSubject;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.session.Misfit;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.weights.wire.WeightsDescription;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;

/** What both sides of weights have in common: their kind, their description, the rules of their frames. */
abstract class WeightsSubject implements ServedSubject {
    static final String KIND = "weights";

    private static final Roles ROLES = new Roles("sender", "host");

    private final ByteString manifestDigest;

    /** @param manifestDigest SHA-256 over names, types, shapes and places of all tensors: the same on both sides */
    WeightsSubject(ByteString manifestDigest) {
        this.manifestDigest = manifestDigest;
    }

    /** What is held for updates that have not ended, by name. */
    public abstract Map<String, Integer> held();

    @Override
    public final String kind() {
        return KIND;
    }

    @Override
    public final ByteString description() {
        return WeightsDescription.newBuilder()
                .setManifestDigest(manifestDigest)
                .build()
                .toByteString();
    }

    @Override
    public final Roles roles() {
        return ROLES;
    }

    @Override
    public final String broken(ControlFrame frame) {
        return WeightsFrames.broken(frame);
    }

    @Override
    public final boolean changed() {
        return false;
    }

    /** Why a peer's tensors are others; empty if they are the same. */
    final Optional<Misfit> misfit(Session session, ByteString peerDescription) {
        ByteString peers;
        try {
            peers = WeightsDescription.parseFrom(peerDescription).getManifestDigest();
        } catch (InvalidProtocolBufferException e) {
            peers = ByteString.EMPTY;
        }
        return peers.equals(manifestDigest)
                ? Optional.empty()
                : Optional.of(new Misfit(
                        "manifest",
                        "the manifest's digest is " + hex(peers) + " at " + session.peerName() + ", expected "
                                + hex(manifestDigest) + ": send the tensors that this server was given with the"
                                + " sender's address",
                        MessengerMetric.MANIFESTS_DIFFERENT));
    }

    private static String hex(ByteString digest) {
        return digest.isEmpty()
                ? "missing"
                : HexFormat.of().formatHex(digest.toByteArray(), 0, Math.min(8, digest.size()));
    }
}
