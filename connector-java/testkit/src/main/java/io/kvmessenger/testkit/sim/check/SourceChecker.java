package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.testkit.sim.BlockPages;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * No page of a layer is read before all its tokens are computed in that layer, and none after its owners gave it up. A shared
 * page is computed when it is for one of them.
 */
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
        final BlockPages blocks;
        final Map<String, Prompt> prompts = new HashMap<>();
        final Map<Integer, List<Owned>> byPage = new HashMap<>();

        Cache(PageMap map) {
            this.map = map;
            this.blocks = new BlockPages(map.geometry());
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
        for (int page : pages) {
            List<Owned> owners = cache.byPage.get(page);
            if (owners != null) {
                throw new Violation(
                        "Source",
                        "page " + page + " of " + process + " was given to " + request + " while "
                                + owners.getFirst().prompt.request + " has it");
            }
        }
        own(cache, request, promptTokens, pages);
    }

    @Override
    public void prefillPagesShared(String process, String request, int promptTokens, List<Integer> pages) {
        own(caches.get(process), request, promptTokens, pages);
    }

    private static void own(Cache cache, String request, int promptTokens, List<Integer> pages) {
        Prompt prompt = cache.prompts.computeIfAbsent(request, r -> new Prompt(r, promptTokens, cache.map.geometry()));
        for (int page : pages) {
            cache.byPage.computeIfAbsent(page, p -> new ArrayList<>()).add(new Owned(prompt, prompt.pageCount++));
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
            cache.byPage.values().forEach(owners -> owners.removeIf(owned -> owned.prompt == prompt));
            cache.byPage.values().removeIf(List::isEmpty);
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
        List<Owned> owners = cache.byPage.get(cache.blocks.blockOf(place.groupIndex(), place.page()));
        if (owners == null) {
            throw new Violation("Source", write + " was read from " + place + ", which no request holds");
        }
        if (owners.stream().noneMatch(owned -> computed(owned, cache, place))) {
            Prompt first = owners.getFirst().prompt;
            throw new Violation(
                    "Source",
                    write + " was read from " + place + " of " + first.request
                            + " before it was computed there, as far as "
                            + Arrays.toString(first.computedTokens[place.rankIndex()]));
        }
    }

    private static boolean computed(Owned owned, Cache cache, PageMap.Place place) {
        int firstToken = owned.logicalPage * cache.blocks.blockTokens();
        int endToken = Math.min(
                owned.prompt.tokenCount, firstToken + cache.blocks.tokensUpTo(place.groupIndex(), place.page()));
        return owned.prompt.computedTokens[place.rankIndex()][place.layerIndex()] >= endToken;
    }
}
