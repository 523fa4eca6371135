package io.kvmessenger.messenger.wire;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import java.util.List;

/** Geometry to and from its wire form. Pure; malformed input throws {@link IllegalArgumentException}. */
public final class GeometryWire {
    private GeometryWire() {}

    public static Geometry encode(KvGeometry geometry) {
        KvGroup group = geometry.groups().getFirst();
        Geometry.Builder wire = Geometry.newBuilder()
                .setModel(geometry.model())
                .setDtype(group.dtype())
                .setElementBytes(group.elementBytes())
                .setPageTokens(group.pageTokens())
                .setLayout(group.layout().name())
                .setKvHeadCount(group.kvHeadCount())
                .setTpSize(geometry.sharding().tpSize())
                .setPpSize(geometry.sharding().ppSize())
                .setDpSize(geometry.sharding().dpSize());
        for (RankGeometry rank : geometry.ranks()) {
            Geometry.Rank.Builder wireRank = Geometry.Rank.newBuilder()
                    .setTpRank(rank.tpRank())
                    .setPpRank(rank.ppRank())
                    .setHeadsFrom(geometry.headsOf(rank, 0).from())
                    .setHeadsTo(geometry.headsOf(rank, 0).to())
                    .setPageCount(group.pageCount());
            for (LayerGeometry layer : rank.layers()) {
                wireRank.addLayers(Geometry.Layer.newBuilder()
                        .setName(layer.name())
                        .setOffsetBytes(layer.offsetBytes())
                        .setPageStrideBytes(layer.pageStrideBytes())
                        .setPageBytes(layer.pageBytes())
                        .setMemoryIndex(layer.memoryIndex()));
            }
            wire.addRanks(wireRank);
        }
        return wire.build();
    }

    public static KvGeometry decode(Geometry wire) {
        int pageCount = wire.getRanksList().stream()
                .mapToInt(Geometry.Rank::getPageCount)
                .min()
                .orElse(0);
        KvGroup group = new KvGroup(
                GroupKind.FULL_ATTENTION,
                wire.getDtype(),
                wire.getElementBytes(),
                wire.getPageTokens(),
                PageLayout.parse(wire.getLayout()),
                wire.getKvHeadCount(),
                pageCount);
        return new KvGeometry(
                wire.getModel(),
                new Sharding(wire.getTpSize(), wire.getPpSize(), wire.getDpSize()),
                List.of(group),
                wire.getRanksList().stream().map(GeometryWire::decodeRank).toList());
    }

    private static RankGeometry decodeRank(Geometry.Rank wire) {
        return new RankGeometry(
                wire.getTpRank(),
                wire.getPpRank(),
                wire.getLayersList().stream()
                        .map(l -> new LayerGeometry(
                                l.getName(),
                                0,
                                l.getMemoryIndex(),
                                l.getOffsetBytes(),
                                l.getPageStrideBytes(),
                                l.getPageBytes()))
                        .toList());
    }
}
