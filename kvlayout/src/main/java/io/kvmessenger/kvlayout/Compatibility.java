package io.kvmessenger.kvlayout;

import static java.util.stream.Collectors.joining;

import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.SortedMap;
import java.util.function.IntPredicate;
import java.util.stream.IntStream;

/**
 * Checks whether pages of one side have the same meaning on the other: when {@link #check} finds no mismatch,
 * {@link LayoutPlanner#plan} has a plan.
 *
 * <p>Pure functions; safe from any thread.
 */
public final class Compatibility {
    private final KvGeometry source;
    private final KvGeometry target;

    private Compatibility(KvGeometry source, KvGeometry target) {
        this.source = source;
        this.target = target;
    }

    /** The first mismatch, most informative field first; empty when the source alone can fill the target's pages. */
    public static Optional<Mismatch> check(KvGeometry source, KvGeometry target) {
        Compatibility sides = new Compatibility(source, target);
        return sides.checkFields()
                .or(sides::checkLayerNames)
                .or(sides::checkLayers)
                .or(sides::checkRows)
                .or(() -> checkCoverage(List.of(source), target));
    }

    /** As {@link #check}, between sides that may each serve only some of their engine's heads and layers. */
    public static Optional<Mismatch> checkPages(KvGeometry source, KvGeometry target) {
        Compatibility sides = new Compatibility(source, target);
        return sides.checkFields().or(sides::checkLayers).or(sides::checkRows);
    }

    private Optional<Mismatch> checkFields() {
        Optional<Mismatch> found = checkModel()
                .or(this::checkWeights)
                .or(() -> differing(
                        "count of KV groups",
                        source.groups().size(),
                        target.groups().size()));
        for (int group = 0; found.isEmpty() && group < source.groups().size(); group++) {
            found = checkGroup(group);
        }
        return found;
    }

    /** If a side's settings are unknown, as in earlier builds, the model's fingerprint is compared, which covers some. */
    private Optional<Mismatch> checkModel() {
        return source.settings().known() && target.settings().known()
                ? ModelSettings.check(source.settings(), target.settings())
                : differing("model", source.model(), target.model());
    }

    /** If a side's digest is unknown, as in earlier builds, only the model's fingerprint is compared. */
    private Optional<Mismatch> checkWeights() {
        boolean known =
                !source.weightsDigest().isEmpty() && !target.weightsDigest().isEmpty();
        return known
                ? differing(Mismatch.WEIGHTS_DIGEST, source.weightsDigest(), target.weightsDigest())
                : Optional.empty();
    }

    private Optional<Mismatch> checkGroup(int group) {
        KvGroup from = source.groups().get(group);
        KvGroup to = target.groups().get(group);
        return differing(ofGroup("kind", group), from.kind().name(), to.kind().name())
                .or(() -> differing(
                        ofGroup("windowTokens", group),
                        from.kind().windowTokens(),
                        to.kind().windowTokens()))
                .or(() -> differing(ofGroup("dtype", group), from.dtype(), to.dtype()))
                .or(() -> differing(ofGroup("elementBytes", group), from.elementBytes(), to.elementBytes()))
                .or(() -> differing(
                        ofGroup("layout", group),
                        from.layout().name(),
                        to.layout().name()))
                .or(() -> checkPageTokens(group))
                .or(() -> checkPageShares(group))
                .or(() -> differing(ofGroup("kvHeadCount", group), from.kvHeadCount(), to.kvHeadCount()));
    }

    /** Names a field for the error message, with its group if there are several. */
    private String ofGroup(String field, int group) {
        return source.groups().size() == 1 ? field : field + " of KV group " + group;
    }

    private static Optional<Mismatch> differing(String field, Object sourceValue, Object targetValue) {
        return sourceValue.equals(targetValue)
                ? Optional.empty()
                : Optional.of(new Mismatch(field, sourceValue.toString(), targetValue.toString()));
    }

    /**
     * One page size must be a multiple of the other, so that a page holds whole pages of the other side. Pages with
     * opaque heads cannot be split by tokens at all: vLLM's CPU kernels, for one, store all K of a head before all V.
     * With a window the sizes must be equal: the source has freed the smaller pages before the window, and the larger
     * page in which the window begins would keep stale bytes in their place.
     */
    private Optional<Mismatch> checkPageTokens(int group) {
        int sourceTokens = source.groups().get(group).pageTokens();
        int targetTokens = target.groups().get(group).pageTokens();
        boolean multiple = sourceTokens % targetTokens == 0 || targetTokens % sourceTokens == 0;
        boolean windowed = source.groups().get(group).kind().windowTokens() > 0;
        if (multiple && !windowed && !source.groups().get(group).layout().equals(PageLayout.HND)) {
            return Optional.empty();
        }
        return differing(ofGroup(Mismatch.PAGE_TOKENS, group), sourceTokens, targetTokens);
    }

    /** Divided pages go page by page to a side on which each rank has all of them. */
    private Optional<Mismatch> checkPageShares(int group) {
        KvGroup from = source.groups().get(group);
        KvGroup to = target.groups().get(group);
        if (to.isDivided()) {
            return Optional.of(new Mismatch(
                    ofGroup("pageShares", group),
                    Integer.toString(from.pageShares()),
                    to.pageShares() + ", expected 1 on a side that receives"));
        }
        return from.isDivided()
                ? differing(ofGroup(Mismatch.PAGE_TOKENS, group), from.pageTokens(), to.pageTokens())
                : Optional.empty();
    }

    private Optional<Mismatch> checkLayerNames() {
        Set<String> sourceNames = source.pagesByLayer().keySet();
        Set<String> targetNames = target.pagesByLayer().keySet();
        return differing("layer count", sourceNames.size(), targetNames.size())
                .or(() -> differing("layer names", List.copyOf(sourceNames), List.copyOf(targetNames)));
    }

    private Optional<Mismatch> checkLayers() {
        SortedMap<String, KvGeometry.LayerPages> sourceLayers = source.pagesByLayer();
        for (Map.Entry<String, KvGeometry.LayerPages> layer :
                target.pagesByLayer().entrySet()) {
            KvGeometry.LayerPages from = sourceLayers.get(layer.getKey());
            Optional<Mismatch> found =
                    from == null ? Optional.empty() : checkLayer(layer.getKey(), from, layer.getValue());
            if (found.isPresent()) {
                return found;
            }
        }
        return Optional.empty();
    }

    private Optional<Mismatch> checkLayer(String name, KvGeometry.LayerPages from, KvGeometry.LayerPages to) {
        if (from.groupIndex() != to.groupIndex()) {
            return differing("KV group of layer \"" + name + "\"", from.groupIndex(), to.groupIndex());
        }
        int sourceTokens = source.groups().get(from.groupIndex()).pageTokens();
        int targetTokens = target.groups().get(to.groupIndex()).pageTokens();
        if (equalRows(from.headBytes(), sourceTokens, to.headBytes(), targetTokens)) {
            return Optional.empty();
        }
        boolean equalPages = sourceTokens == targetTokens;
        return Optional.of(new Mismatch(
                "page bytes for each KV head of layer \"" + name + "\"",
                from.headBytes() + (equalPages ? "" : " for " + sourceTokens + " tokens"),
                to.headBytes() + (equalPages ? "" : " for " + targetTokens + " tokens")));
    }

    /** Whether a head takes as many bytes per token on both sides; padding at a page's end requires equal pages. */
    private static boolean equalRows(int sourceBytes, int sourceTokens, int targetBytes, int targetTokens) {
        return sourceTokens == targetTokens
                ? sourceBytes == targetBytes
                : sourceBytes % sourceTokens == 0
                        && targetBytes % targetTokens == 0
                        && sourceBytes / sourceTokens == targetBytes / targetTokens;
    }

    /** NHD pages split by heads are copied token by token: a token of a head must be whole bytes. */
    private Optional<Mismatch> checkRows() {
        boolean wholeBytes = source.pagesByLayer().values().stream()
                .allMatch(layer -> !splitsRows(layer.groupIndex())
                        || layer.headBytes()
                                        % source.groups()
                                                .get(layer.groupIndex())
                                                .pageTokens()
                                == 0);
        return wholeBytes
                ? Optional.empty()
                : Optional.of(new Mismatch("sharding", describeRanks(source), describeRanks(target)));
    }

    private boolean splitsRows(int group) {
        KvGroup from = source.groups().get(group);
        KvGroup to = target.groups().get(group);
        return from.layout().equals(PageLayout.NHD)
                && source.sharding().headsPerRank(from.kvHeadCount())
                        != target.sharding().headsPerRank(to.kvHeadCount());
    }

    /** Whether the ranks of all source messengers together hold every head of every layer that the target needs. */
    public static Optional<Mismatch> checkCoverage(List<KvGeometry> sources, KvGeometry target) {
        for (RankGeometry rank : target.ranks()) {
            for (LayerGeometry layer : rank.layers()) {
                String unshared = unshared(sources, layer);
                if (!covered(sources, layer, target.headsOf(rank, layer.groupIndex())) || !unshared.isEmpty()) {
                    String offered =
                            sources.stream().map(Compatibility::describeRanks).collect(joining(", "));
                    return Optional.of(new Mismatch("sharding", offered + unshared, describeRanks(target)));
                }
            }
        }
        return Optional.empty();
    }

    private static boolean covered(List<KvGeometry> sources, LayerGeometry layer, HeadRange heads) {
        BitSet missing = new BitSet();
        missing.set(heads.from(), heads.to());
        for (KvGeometry source : sources) {
            for (RankGeometry rank : source.ranks()) {
                if (rank.layerIndex(layer.name()) >= 0) {
                    HeadRange held = source.headsOf(rank, layer.groupIndex());
                    missing.clear(held.from(), held.to());
                }
            }
        }
        return missing.isEmpty();
    }

    /** Of divided pages, which ranks' shares no source has, or several; empty if each is on exactly one rank. */
    private static String unshared(List<KvGeometry> sources, LayerGeometry layer) {
        KvGroup group = sources.getFirst().groups().get(layer.groupIndex());
        if (!group.isDivided()) {
            return "";
        }
        int[] found = new int[group.pageShares()];
        for (KvGeometry source : sources) {
            for (RankGeometry rank : source.ranks()) {
                if (rank.layerIndex(layer.name()) >= 0) {
                    found[KvGeometry.shareOf(rank, group)]++;
                }
            }
        }
        return sharesWhere(" without the pages of TP rank ", found, count -> count == 0)
                + sharesWhere(" with twice the pages of TP rank ", found, count -> count > 1);
    }

    private static String sharesWhere(String text, int[] found, IntPredicate wrong) {
        String ranks = IntStream.range(0, found.length)
                .filter(share -> wrong.test(found[share]))
                .mapToObj(Integer::toString)
                .collect(joining(" and "));
        return ranks.isEmpty() ? "" : text + ranks;
    }

    private static String describeRanks(KvGeometry geometry) {
        Sharding sharding = geometry.sharding();
        return sharding + " (" + geometry.ranks().size() + " of " + sharding.tpSize() * sharding.ppSize() + " ranks)";
    }
}
