package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** No page of a layer is read before all its tokens are computed in that layer, and none after its owner gave it up. */
final class SourceChecker implements WorldListener {
    private static final class Prompt {
        final String request;
        final int tokenCount;
        /** By rank and layer. */
        final int[][] computedTokens;

        int pageCount;

        Prompt(String request, int tokenCount, KvGeometry geometry) {
            this.request = request;
            this.tokenCount = tokenCount;
            this.computedTokens = geometry.ranks().stream()
                    .map(rank -> new int[rank.layers().size()])
                    .toArray(int[][]::new);
        }
    }

    private record Owned(Prompt prompt, int logicalPage) {}

    private static final class Cache {
        final PageMap map;
        final Map<String, Prompt> prompts = new HashMap<>();
        final Map<Integer, Owned> byPage = new HashMap<>();

        Cache(PageMap map) {
            this.map = map;
        }
    }

    private final Map<String, Cache> caches = new HashMap<>();

    @Override
    public void processStarted(String process, KvGeometry geometry, List<MemorySegment> memories) {
        caches.put(process, new Cache(new PageMap(geometry)));
    }

    @Override
    public void prefillPagesTaken(String process, String request, int promptTokens, List<Integer> pages) {
        Cache cache = caches.get(process);
        Prompt prompt = cache.prompts.computeIfAbsent(request, r -> new Prompt(r, promptTokens, cache.map.geometry()));
        for (int page : pages) {
            Owned before = cache.byPage.put(page, new Owned(prompt, prompt.pageCount++));
            if (before != null) {
                throw new Violation(
                        "Source",
                        "page " + page + " of " + process + " was given to " + request + " while "
                                + before.prompt.request + " has it");
            }
        }
    }

    @Override
    public void layerComputed(String process, String request, int rankIndex, int layerIndex, int endToken) {
        int[] computed = caches.get(process).prompts.get(request).computedTokens[rankIndex];
        computed[layerIndex] = Math.max(computed[layerIndex], endToken);
    }

    @Override
    public void prefillPagesTakenBack(String process, String request, String transferId) {
        giveUp(process, request);
    }

    @Override
    public void prefillReleased(String process, String request) {
        giveUp(process, request);
    }

    private void giveUp(String process, String request) {
        Cache cache = caches.get(process);
        Prompt prompt = cache.prompts.remove(request);
        if (prompt != null) {
            cache.byPage.values().removeIf(owned -> owned.prompt == prompt);
        }
    }

    @Override
    public void sourceRead(PageWrite write) {
        Cache cache = caches.get(write.source());
        List<PageMap.Place> places = cache.map.cover(write.sourceRank(), write.sourceOffset(), write.lengthBytes());
        if (places.isEmpty()) {
            throw new Violation("Source", write + " was read outside all pages");
        }
        places.forEach(place -> checkComputed(write, cache, place));
    }

    private static void checkComputed(PageWrite write, Cache cache, PageMap.Place place) {
        Owned owned = cache.byPage.get(place.page());
        if (owned == null) {
            throw new Violation("Source", write + " was read from " + place + ", which nobody holds");
        }
        int endToken = Math.min(owned.prompt.tokenCount, (owned.logicalPage + 1) * cache.map.pageTokens());
        int[] computed = owned.prompt.computedTokens[place.rankIndex()];
        if (computed[place.layerIndex()] < endToken) {
            throw new Violation(
                    "Source",
                    write + " was read from " + place + " of " + owned.prompt.request + " before token " + endToken
                            + " was computed there: " + Arrays.toString(computed));
        }
    }
}
