package io.kvmessenger.connector;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A sharded engine of a test, and those of its ranks that one messenger serves. Where bytes lie in a page, and which, is
 * said here once more in its own words, so that the planner is not judged by itself. A value; its words go through a
 * process's command line.
 *
 * @param heads KV heads of the model; 1 with LATENT
 * @param fromRank first rank served, counted stage by stage
 */
record ShardedShape(String layout, int heads, int tpSize, int ppSize, int dpSize, int fromRank, int toRank) {
    static final int PAGE_TOKENS = 16;
    static final int PAGE_COUNT = 12;
    static final int LAYER_COUNT = 4;
    /** Bytes of one head of one token. */
    static final int HEAD_BYTES = 32;

    /** Bytes of a rank's memory in which no page lies, before each layer. */
    private static final int GAP_BYTES = 128;

    static ShardedShape parse(List<String> words) {
        return new ShardedShape(
                words.getFirst(),
                Integer.parseInt(words.get(1)),
                Integer.parseInt(words.get(2)),
                Integer.parseInt(words.get(3)),
                Integer.parseInt(words.get(4)),
                Integer.parseInt(words.get(5)),
                Integer.parseInt(words.get(6)));
    }

    List<String> words() {
        return List.of(
                layout,
                Integer.toString(heads),
                Integer.toString(tpSize),
                Integer.toString(ppSize),
                Integer.toString(dpSize),
                Integer.toString(fromRank),
                Integer.toString(toRank));
    }

    int rankCount() {
        return toRank - fromRank;
    }

    int headsHeld() {
        return Math.max(1, heads / tpSize);
    }

    int pageBytes() {
        return headsHeld() * PAGE_TOKENS * HEAD_BYTES;
    }

    int ppRank(int rank) {
        return (fromRank + rank) / tpSize;
    }

    int tpRank(int rank) {
        return (fromRank + rank) % tpSize;
    }

    /** The model's layers that a rank holds: its stage's share. */
    int firstLayer(int rank) {
        return ppRank(rank) * layersHeld();
    }

    int layersHeld() {
        return LAYER_COUNT / ppSize;
    }

    long memoryBytes() {
        return layersHeld() * layerBytes();
    }

    private long layerBytes() {
        return GAP_BYTES + (long) PAGE_COUNT * pageBytes();
    }

    /** Where a page of the rank's so many-th layer begins. */
    long pageOffset(int layerIndex, int page) {
        return layerIndex * layerBytes() + GAP_BYTES + (long) page * pageBytes();
    }

    /** Where in a page a byte of a head that the rank holds lies. */
    int byteInPage(int heldHead, int tokenInPage, int byteOfHead) {
        int place = layout.equals("HND") ? heldHead * PAGE_TOKENS + tokenInPage : tokenInPage * headsHeld() + heldHead;
        return place * HEAD_BYTES + byteOfHead;
    }

    /** The model's head that the rank holds as its so many-th. */
    int head(int rank, int heldHead) {
        return tpRank(rank) * heads / tpSize + heldHead;
    }

    /** What the KV of a prompt is there; never 0. */
    static byte content(String transfer, int layer, int token, int head, int byteOfHead) {
        int mixed = transfer.hashCode() * 31 + layer;
        mixed = mixed * 31 + token;
        mixed = mixed * 31 + head;
        mixed = (mixed * 31 + byteOfHead) * 0x9E3779B9;
        return (byte) (1 + Math.floorMod(mixed >>> 7, 255));
    }

    /** The geometry as it crosses the boundary; {@code memories} by rank. */
    Map<String, Object> geometry(List<Map<String, Object>> memories) {
        List<Map<String, Object>> ranks = new ArrayList<>();
        for (int rank = 0; rank < rankCount(); rank++) {
            List<Map<String, Object>> layers = new ArrayList<>();
            for (int layer = 0; layer < layersHeld(); layer++) {
                layers.add(Map.of(
                        "name",
                        "layer." + (firstLayer(rank) + layer),
                        "memoryIndex",
                        0,
                        "groupIndex",
                        0,
                        "offsetBytes",
                        pageOffset(layer, 0),
                        "pageStrideBytes",
                        pageBytes(),
                        "pageBytes",
                        pageBytes()));
            }
            ranks.add(Map.of(
                    "tpRank",
                    tpRank(rank),
                    "ppRank",
                    ppRank(rank),
                    "memories",
                    List.of(memories.get(rank)),
                    "layers",
                    layers));
        }
        Map<String, Object> geometry = new LinkedHashMap<>();
        geometry.put("model", "sharded@1");
        geometry.put("groups", List.of(EngineDouble.group("bfloat16", 2, PAGE_TOKENS, layout, heads, PAGE_COUNT)));
        geometry.put("tpSize", tpSize);
        geometry.put("ppSize", ppSize);
        geometry.put("dpSize", dpSize);
        geometry.put("ranks", ranks);
        return geometry;
    }
}
