package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.testkit.sim.BlockPages;
import io.kvmessenger.testkit.sim.PromptName;
import io.kvmessenger.transfer.Imm;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * No page of a layer is read before all its tokens are computed in that layer, and none after its owners gave it up. A
 * shared page is computed when it is computed for one of them. If transfers include context rows, granted pages of a
 * preempted prompt may be read late: no fetch arrives by that, which the other checkers verify.
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
        /** By context slot. */
        final Map<Integer, String> requestBySlot = new HashMap<>();

        Cache(PageMap map) {
            this.map = map;
            this.blocks = new BlockPages(map.geometry());
        }

        List<Owned> ownersOf(PageMap.Place place) {
            return place.groupIndex() == PageMap.CONTEXT
                    ? List.of()
                    : byPage.getOrDefault(blocks.blockOf(place.groupIndex(), place.page()), List.of());
        }
    }

    /** A prefiller's grant with an immediate. */
    private static final class Granted {
        final String prefiller;
        final String name;
        /** Its KV is accepted only with its context rows. */
        final boolean rowsFollow;
        /** The prompt was preempted, and its pages belong to others. */
        boolean takenBack;

        Granted(String prefiller, String name, boolean rowsFollow) {
            this.prefiller = prefiller;
            this.name = name;
            this.rowsFollow = rowsFollow;
        }
    }

    private final Map<String, Cache> caches = new HashMap<>();
    /** By prefiller, decoder and immediate. */
    private final Map<String, Granted> grants = new HashMap<>();

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
        grants.values().stream()
                .filter(grant -> grant.rowsFollow && grant.prefiller.equals(process) && grant.name.equals(transferId))
                .forEach(grant -> grant.takenBack = true);
        giveUp(process, request);
    }

    @Override
    public void prefillReleased(String process, String request) {
        giveUp(process, request);
    }

    @Override
    public void contextLeft(String process, String request, int slot) {
        caches.get(process).requestBySlot.put(slot, request);
    }

    private void giveUp(String process, String request) {
        Cache cache = caches.get(process);
        cache.requestBySlot.values().remove(request);
        Prompt prompt = cache.prompts.remove(request);
        if (prompt != null) {
            cache.byPage.values().forEach(owners -> owners.removeIf(owned -> owned.prompt == prompt));
            cache.byPage.values().removeIf(List::isEmpty);
        }
    }

    @Override
    public void frameDelivered(String from, String to, ControlFrame frame) {
        if (frame.hasGrant()) {
            Grant grant = frame.getGrant();
            String name = PromptName.of(grant.getTransferId(), grant.getPromptDigest());
            grants.put(key(to, from, grant.getImm()), new Granted(to, name, grant.getContextSlot() > 0));
        }
    }

    private static String key(String prefiller, String decoder, int imm) {
        return prefiller + " " + decoder + " " + imm;
    }

    @Override
    public void sourceRead(PageWrite write) {
        Cache cache = caches.get(write.source());
        int imm = Imm.of(Imm.slot(write.imm()), Imm.generation(write.imm()));
        Granted grant = grants.get(key(write.source(), write.target(), imm));
        if (grant != null && grant.takenBack) {
            return;
        }
        List<PageMap.Place> places = cache.map.cover(write.sourceRank(), write.sourceOffset(), write.lengthBytes());
        if (places.isEmpty()) {
            throw new Violation("Source", write + " was read outside all pages");
        }
        places.forEach(place -> checkComputed(write.toString(), cache, place));
    }

    /** Like a write, a device must not read pages of another owner or of none; for which grant it reads is unknown. */
    @Override
    public void deviceRead(String process, int rankIndex, long offset, int lengthBytes) {
        Cache cache = caches.get(process);
        if (grants.values().stream().anyMatch(grant -> grant.takenBack && grant.prefiller.equals(process))) {
            return;
        }
        String copy = "a copy of " + process + "'s device";
        List<PageMap.Place> places = cache.map.cover(rankIndex, offset, lengthBytes);
        if (places.isEmpty()) {
            throw new Violation("Source", copy + " read outside all pages");
        }
        places.forEach(place -> checkComputed(copy, cache, place));
    }

    private static void checkComputed(String reader, Cache cache, PageMap.Place place) {
        if (place.groupIndex() == PageMap.CONTEXT) {
            if (!cache.requestBySlot.containsKey(place.page())) {
                throw new Violation("Source", reader + " read " + place + ", which no request has left there");
            }
            return;
        }
        List<Owned> owners = cache.ownersOf(place);
        if (owners.isEmpty()) {
            throw new Violation("Source", reader + " read " + place + ", which no request holds");
        }
        if (owners.stream().noneMatch(owned -> computed(owned, cache, place))) {
            Prompt first = owners.getFirst().prompt;
            throw new Violation(
                    "Source",
                    reader + " read " + place + " of " + first.request
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
