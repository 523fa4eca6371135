package io.kvmessenger.messenger.wire;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.ModelSettings;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;

/** Geometry to and from its wire form. Pure; malformed input throws {@link IllegalArgumentException}. */
public final class GeometryWire {
    private GeometryWire() {}

    public static Geometry encode(KvGeometry geometry) {
        Geometry.Builder wire = Geometry.newBuilder()
                .setModel(geometry.model())
                .setWeightsDigest(geometry.weightsDigest())
                .setTpSize(geometry.sharding().tpSize())
                .setPpSize(geometry.sharding().ppSize())
                .setDpSize(geometry.sharding().dpSize());
        geometry.settings()
                .values()
                .forEach((name, value) -> wire.addSettings(
                        Geometry.Setting.newBuilder().setName(name).setValue(value)));
        wire.addAllSettingsMayDiffer(
                geometry.settings().mayDiffer().stream().sorted().toList());
        geometry.groups().forEach(group -> wire.addGroups(encode(group)));
        geometry.ranks().forEach(rank -> wire.addRanks(encode(rank)));
        return wire.build();
    }

    private static Geometry.Group.Builder encode(KvGroup group) {
        return Geometry.Group.newBuilder()
                .setKind(group.kind().name())
                .setWindowTokens(group.kind().windowTokens())
                .setDtype(group.dtype())
                .setElementBytes(group.elementBytes())
                .setPageTokens(group.pageTokens())
                .setLayout(group.layout().name())
                .setKvHeadCount(group.kvHeadCount())
                .setPageCount(group.pageCount())
                .setPageShares(group.isDivided() ? group.pageShares() : 0);
    }

    private static Geometry.Rank.Builder encode(RankGeometry rank) {
        Geometry.Rank.Builder wire =
                Geometry.Rank.newBuilder().setTpRank(rank.tpRank()).setPpRank(rank.ppRank());
        for (LayerGeometry layer : rank.layers()) {
            wire.addLayers(Geometry.Layer.newBuilder()
                    .setName(layer.name())
                    .setGroupIndex(layer.groupIndex())
                    .setOffsetBytes(layer.offsetBytes())
                    .setPageStrideBytes(layer.pageStrideBytes())
                    .setPageBytes(layer.pageBytes())
                    .setMemoryIndex(layer.memoryIndex()));
        }
        return wire;
    }

    public static KvGeometry decode(Geometry wire) {
        return new KvGeometry(
                wire.getModel(),
                wire.getWeightsDigest(),
                decodeSettings(wire),
                new Sharding(wire.getTpSize(), wire.getPpSize(), wire.getDpSize()),
                wire.getGroupsList().stream().map(GeometryWire::decode).toList(),
                wire.getRanksList().stream().map(GeometryWire::decode).toList());
    }

    private static ModelSettings decodeSettings(Geometry wire) {
        Map<String, String> values = new LinkedHashMap<>();
        wire.getSettingsList().forEach(setting -> values.put(setting.getName(), setting.getValue()));
        return new ModelSettings(values, Set.copyOf(wire.getSettingsMayDifferList()));
    }

    private static KvGroup decode(Geometry.Group wire) {
        return new KvGroup(
                GroupKind.parse(wire.getKind(), wire.getWindowTokens()),
                wire.getDtype(),
                wire.getElementBytes(),
                wire.getPageTokens(),
                PageLayout.parse(wire.getLayout()),
                wire.getKvHeadCount(),
                wire.getPageCount(),
                wire.getPageShares() == 0 ? 1 : wire.getPageShares());
    }

    private static RankGeometry decode(Geometry.Rank wire) {
        return new RankGeometry(
                wire.getTpRank(),
                wire.getPpRank(),
                wire.getLayersList().stream()
                        .map(l -> new LayerGeometry(
                                l.getName(),
                                l.getGroupIndex(),
                                l.getMemoryIndex(),
                                l.getOffsetBytes(),
                                l.getPageStrideBytes(),
                                l.getPageBytes()))
                        .toList());
    }
}
