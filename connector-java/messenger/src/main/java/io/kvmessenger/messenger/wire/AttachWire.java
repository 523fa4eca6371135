package io.kvmessenger.messenger.wire;

import com.google.protobuf.ByteString;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.transfer.EngineAddress;
import io.kvmessenger.transfer.RegionDescriptor;
import java.util.ArrayList;
import java.util.List;

/** How to write to a decoder, to and from wire form. Pure; malformed input throws {@link IllegalArgumentException}. */
public final class AttachWire {
    private AttachWire() {}

    /** @param concealedKey of the admission, encrypted where a shared secret is set */
    public static void encode(
            Attach.Builder wire,
            EngineAddress address,
            ByteString concealedKey,
            List<List<RegionDescriptor>> regionsByRank) {
        for (EngineAddress.TransportAddress at : address.transports()) {
            wire.addTransports(io.kvmessenger.messenger.wire.TransportAddress.newBuilder()
                    .setTransport(at.transport())
                    .setLocation(at.location()));
        }
        wire.setAdmissionKey(concealedKey);
        for (List<RegionDescriptor> regions : regionsByRank) {
            Attach.RankRegions.Builder rank = Attach.RankRegions.newBuilder();
            for (RegionDescriptor region : regions) {
                rank.addByMemory(encode(region));
            }
            wire.addRanks(rank);
        }
    }

    static Region.Builder encode(RegionDescriptor region) {
        return Region.newBuilder()
                .setRegionId(region.regionId())
                .setLengthBytes(region.lengthBytes())
                .setVersion(region.version())
                .setShareable(region.shareable());
    }

    static RegionDescriptor decode(Region wire) {
        return new RegionDescriptor(wire.getRegionId(), wire.getLengthBytes(), wire.getVersion(), wire.getShareable());
    }

    public static EngineAddress address(Attach wire) {
        return new EngineAddress(wire.getTransportsList().stream()
                .map(t -> new EngineAddress.TransportAddress(t.getTransport(), t.getLocation()))
                .toList());
    }

    /** The peer's regions, by rank and memory; each is large enough for every page of the peer's geometry. */
    public static List<List<RegionDescriptor>> regionsByRank(Attach wire, KvGeometry peer) {
        if (wire.getRanksCount() != peer.ranks().size()) {
            throw new IllegalArgumentException("regions of " + wire.getRanksCount() + " ranks, the geometry has "
                    + peer.ranks().size());
        }
        List<List<RegionDescriptor>> regionsByRank = new ArrayList<>();
        for (int i = 0; i < peer.ranks().size(); i++) {
            List<RegionDescriptor> regions = wire.getRanks(i).getByMemoryList().stream()
                    .map(AttachWire::decode)
                    .toList();
            requireRoom(regions, peer, i);
            regionsByRank.add(regions);
        }
        return regionsByRank;
    }

    private static void requireRoom(List<RegionDescriptor> regions, KvGeometry peer, int rankIndex) {
        RankGeometry rank = peer.ranks().get(rankIndex);
        if (regions.size() != rank.memoryCount()) {
            throw new IllegalArgumentException(
                    regions.size() + " regions of a rank whose layers lie in " + rank.memoryCount() + " memories");
        }
        for (int memory = 0; memory < regions.size(); memory++) {
            if (!regions.get(memory).contains(0, peer.spanBytes(rankIndex, memory))) {
                throw new IllegalArgumentException(
                        "region " + regions.get(memory).regionId() + " has "
                                + regions.get(memory).lengthBytes() + " bytes, the layers in it end at "
                                + peer.spanBytes(rankIndex, memory));
            }
        }
    }
}
