package io.kvmessenger.messenger;

import io.kvmessenger.kvlayout.HeadRange;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.messenger.wire.Geometry;

/** Geometry to and from its wire form. Pure; a peer's nonsense surfaces as {@link IllegalArgumentException}. */
final class GeometryWire {
    private GeometryWire() {}

    static Geometry encode(KvGeometry geometry) {
        Geometry.Builder wire = Geometry.newBuilder()
                .setModel(geometry.model())
                .setDtype(geometry.dtype())
                .setElementBytes(geometry.elementBytes())
                .setPageTokens(geometry.pageTokens())
                .setLayout(geometry.layout().name())
                .setKvHeadCount(geometry.kvHeadCount())
                .setTpSize(geometry.sharding().tpSize())
                .setPpSize(geometry.sharding().ppSize())
                .setDpSize(geometry.sharding().dpSize());
        for (RankGeometry rank : geometry.ranks()) {
            Geometry.Rank.Builder wireRank = Geometry.Rank.newBuilder()
                    .setTpRank(rank.tpRank())
                    .setPpRank(rank.ppRank())
                    .setHeadsFrom(rank.heads().from())
                    .setHeadsTo(rank.heads().to())
                    .setPageCount(rank.pageCount());
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

    static KvGeometry decode(Geometry wire) {
        return new KvGeometry(
                wire.getModel(),
                wire.getDtype(),
                wire.getElementBytes(),
                wire.getPageTokens(),
                PageLayout.parse(wire.getLayout()),
                wire.getKvHeadCount(),
                new Sharding(wire.getTpSize(), wire.getPpSize(), wire.getDpSize()),
                wire.getRanksList().stream().map(GeometryWire::decodeRank).toList());
    }

    private static RankGeometry decodeRank(Geometry.Rank wire) {
        return new RankGeometry(
                wire.getTpRank(),
                wire.getPpRank(),
                new HeadRange(wire.getHeadsFrom(), wire.getHeadsTo()),
                wire.getPageCount(),
                wire.getLayersList().stream()
                        .map(l -> new LayerGeometry(
                                l.getName(),
                                l.getMemoryIndex(),
                                l.getOffsetBytes(),
                                l.getPageStrideBytes(),
                                l.getPageBytes()))
                        .toList());
    }
}
