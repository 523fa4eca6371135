package io.kvmessenger.kvlayout;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;

/**
 * One side's KV cache, as its engine registered it: what is exchanged between peers, once, before the first page.
 *
 * @param model fingerprint of the model; sides with different ones never exchange pages
 * @param dtype the engine's name of the element type
 * @param pageTokens tokens in a page
 * @param kvHeadCount KV heads of the whole model; 1 when the layout is latent
 * @param ranks those that one messenger serves: all of the engine's, or some
 */
public record KvGeometry(
        String model,
        String dtype,
        int elementBytes,
        int pageTokens,
        PageLayout layout,
        int kvHeadCount,
        Sharding sharding,
        List<RankGeometry> ranks) {

    public KvGeometry {
        ranks = List.copyOf(ranks);
        requireSet("model", model);
        requireSet("dtype", dtype);
        requirePositive("elementBytes", elementBytes);
        requirePositive("pageTokens", pageTokens);
        requirePositive("kvHeadCount", kvHeadCount);
        if (layout instanceof PageLayout.Latent && kvHeadCount != 1) {
            throw new IllegalArgumentException(
                    "kvHeadCount is " + kvHeadCount + " with layout LATENT, expected 1: latent KV has no heads");
        }
        if (ranks.isEmpty()) {
            throw new IllegalArgumentException("the geometry has no ranks, expected at least one");
        }
        Set<List<Integer>> places = new HashSet<>();
        for (RankGeometry rank : ranks) {
            requireInside(rank, sharding, kvHeadCount);
            if (!places.add(List.of(rank.tpRank(), rank.ppRank()))) {
                throw new IllegalArgumentException(
                        "two ranks are tpRank " + rank.tpRank() + ", ppRank " + rank.ppRank());
            }
        }
        headPageBytesByLayer(ranks);
    }

    private static void requireSet(String name, String value) {
        if (value.isEmpty()) {
            throw new IllegalArgumentException(name + " is empty, expected a name");
        }
    }

    private static void requirePositive(String name, int value) {
        if (value < 1) {
            throw new IllegalArgumentException(name + " is " + value + ", expected at least 1");
        }
    }

    private static void requireInside(RankGeometry rank, Sharding sharding, int kvHeadCount) {
        if (rank.ppRank() >= sharding.ppSize()) {
            throw new IllegalArgumentException(
                    "ppRank is " + rank.ppRank() + ", expected 0 to " + (sharding.ppSize() - 1));
        }
        HeadRange expected = sharding.headsOf(rank.tpRank(), kvHeadCount);
        if (!rank.heads().equals(expected)) {
            throw new IllegalArgumentException("heads of tpRank " + rank.tpRank() + " are " + rank.heads()
                    + ", expected " + expected + " with tpSize " + sharding.tpSize() + " and " + kvHeadCount
                    + " KV heads");
        }
    }

    /** Bytes that one head takes in a page, by layer name; equal on all ranks that hold the layer. */
    SortedMap<String, Integer> headPageBytesByLayer() {
        return headPageBytesByLayer(ranks);
    }

    private static SortedMap<String, Integer> headPageBytesByLayer(List<RankGeometry> ranks) {
        SortedMap<String, Integer> bytesByName = new TreeMap<>();
        for (RankGeometry rank : ranks) {
            for (LayerGeometry layer : rank.layers()) {
                int headPageBytes = layer.pageBytes() / rank.heads().count();
                if (headPageBytes * rank.heads().count() != layer.pageBytes()) {
                    throw new IllegalArgumentException("pageBytes of layer \"" + layer.name() + "\" is "
                            + layer.pageBytes() + ", expected a multiple of the rank's "
                            + rank.heads().count() + " heads");
                }
                Integer other = bytesByName.putIfAbsent(layer.name(), headPageBytes);
                if (other != null && other != headPageBytes) {
                    throw new IllegalArgumentException("a head of layer \"" + layer.name() + "\" takes " + headPageBytes
                            + " bytes of a page on one rank and " + other + " on another, expected the same on all");
                }
            }
        }
        return bytesByName;
    }

    /**
     * A hash over everything that decides whether pages mean the same, in hexadecimal. Equal hashes: {@link Compatibility}
     * finds no mismatch but possibly one of sharding. The same in every process and version of this class.
     */
    public String digest() {
        StringBuilder text = new StringBuilder();
        for (String value : new String[] {
            model,
            dtype,
            Integer.toString(elementBytes),
            Integer.toString(pageTokens),
            layout.name(),
            Integer.toString(kvHeadCount)
        }) {
            appendField(text, value);
        }
        for (Map.Entry<String, Integer> layer : headPageBytesByLayer().entrySet()) {
            appendField(text, layer.getKey());
            appendField(text, layer.getValue().toString());
        }
        try {
            MessageDigest sha256 = MessageDigest.getInstance("SHA-256");
            return HexFormat.of().formatHex(sha256.digest(text.toString().getBytes(StandardCharsets.UTF_8)));
        } catch (NoSuchAlgorithmException e) {
            throw new AssertionError("every Java platform has SHA-256", e);
        }
    }

    /** Length first, so that no two lists of fields have the same text. */
    private static void appendField(StringBuilder text, String value) {
        text.append(value.length()).append(':').append(value).append('\n');
    }
}
