package io.kvmessenger.testkit.sim;

import io.kvmessenger.testkit.sim.check.WorldListener;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.IntStream;

/**
 * The pages of the prompts of one prefiller's engine: taken chunk by chunk, shared by prompts that begin alike, and
 * given to their next owner at once. One thread.
 */
final class PrefillPages {
    private final SimulatedNode node;
    private final PagePool pool;
    private final SimulatedDevice device;
    private final WorldListener listener;
    private final Mutation mutation;
    /** Called when pages become free that may be awaited. */
    private final Runnable onFreed;

    private final PrefixCache prefixes;
    private final int pageTokens;

    PrefillPages(
            SimulatedNode node,
            PagePool pool,
            SimulatedDevice device,
            WorldListener listener,
            Mutation mutation,
            Runnable onFreed) {
        this.node = node;
        this.pool = pool;
        this.device = device;
        this.listener = listener;
        this.mutation = mutation;
        this.onFreed = onFreed;
        this.pageTokens = pool.blockTokens();
        this.prefixes = new PrefixCache(pageTokens);
    }

    /**
     * Finds the prompt's beginning in pages of others, or in pages of its own that were written long ago. Returns how
     * many of its tokens are known to be written; the following ones, up to {@code computedTokens}, are computed by
     * this pass for another prompt.
     */
    int begin(PrefillPrompt prompt, SplittableRandom random) {
        listener.prefillBegun(node.process(), prompt.request, prompt.name);
        boolean cached = random.nextInt(3) == 0;
        prompt.hits = prefixes.hit(prompt.name, prompt.tokenCount);
        if (prompt.hits.isEmpty()) {
            prompt.computedTokens = cached ? random.nextInt((prompt.tokenCount - 1) / pageTokens + 1) * pageTokens : 0;
            return prompt.computedTokens;
        }
        int writtenTokens = share(prompt);
        return mutation == Mutation.COMMITTED_TAKEN_AS_WRITTEN ? prompt.computedTokens : writtenTokens;
    }

    /**
     * Holds for a peer what is cached of a prompt: the beginning that prompts of this engine share, or pages that were
     * written long ago. Returns whether there is any.
     *
     * @param pagesMax above 0
     */
    boolean pin(PrefillPrompt offer, SplittableRandom random, int pagesMax) {
        offer.hits = pinShared(offer, pagesMax);
        int taken = offer.hits.isEmpty()
                ? Math.min(Math.min(pool.spareCount(), pagesMax), 1 + random.nextInt(pool.pagesFor(offer.tokenCount)))
                : 0;
        if (offer.hits.isEmpty() && taken <= 0) {
            return false;
        }
        hold(offer, taken);
        return true;
    }

    /** The same for another messenger of an engine that has decided how many pages it offers; there are enough. */
    void pin(PrefillPrompt offer, int pageCount) {
        List<PrefixCache.Entry> shared = pinShared(offer, pageCount);
        boolean enough = shared.size() == pageCount;
        if (!enough) {
            shared.forEach(prefixes::giveUp);
        }
        offer.hits = enough ? shared : List.of();
        hold(offer, enough ? 0 : pageCount);
    }

    /** Holds the shared pages that it has found, or takes some. */
    private void hold(PrefillPrompt offer, int taken) {
        listener.prefillBegun(node.process(), offer.request, offer.name);
        if (taken > 0) {
            offer.pages = pool.take(taken);
            offer.computedTokens = taken * pageTokens;
            listener.prefillPagesTaken(
                    node.process(),
                    offer.request,
                    offer.tokenCount,
                    IntStream.of(offer.pages).boxed().toList());
            computeCached(offer);
        } else {
            share(offer);
        }
    }

    /** A page that is not written yet may never be: it is offered by an engine with that bug only. */
    private List<PrefixCache.Entry> pinShared(PrefillPrompt offer, int pagesMax) {
        List<PrefixCache.Entry> found = prefixes.hit(offer.name, offer.tokenCount + 1);
        int written = mutation == Mutation.OFFERED_BEFORE_WRITTEN ? found.size() : writtenCount(found);
        int offered = Math.min(written, pagesMax);
        found.subList(offered, found.size()).forEach(prefixes::giveUp);
        return found.subList(0, offered);
    }

    private static int writtenCount(List<PrefixCache.Entry> entries) {
        return (int) entries.stream().takeWhile(PrefixCache.Entry::written).count();
    }

    /** The prompt begins with the pages that it has found. Returns how many of its tokens are known to be written. */
    private int share(PrefillPrompt prompt) {
        prompt.entries.addAll(prompt.hits);
        prompt.pages = prompt.hits.stream().mapToInt(PrefixCache.Entry::page).toArray();
        prompt.computedTokens = prompt.pages.length * pageTokens;
        listener.prefillPagesShared(
                node.process(),
                prompt.request,
                prompt.tokenCount,
                IntStream.of(prompt.pages).boxed().toList());
        int writtenTokens = writtenCount(prompt.hits) * pageTokens;
        reportComputed(prompt, writtenTokens);
        return writtenTokens;
    }

    /** Takes the pages that the chunk needs; full ones are in the cache from now on. */
    void take(PrefillPrompt prompt, ForwardPass pass) {
        int had = prompt.pages.length;
        int[] taken = pool.take(pool.pagesFor(prompt.endToken) - had);
        prompt.pages = Arrays.copyOf(prompt.pages, had + taken.length);
        System.arraycopy(taken, 0, prompt.pages, had, taken.length);
        listener.prefillPagesTaken(
                node.process(),
                prompt.request,
                prompt.tokenCount,
                IntStream.of(taken).boxed().toList());
        for (int k = prompt.entries.size(); (k + 1) * pageTokens <= prompt.endToken; k++) {
            prompt.entries.add(prefixes.commit(prompt.name, prompt.tokenCount, k, prompt.pages[k], pass));
        }
    }

    /** Fills a prompt's own pages with what was computed long ago, if it found none of others. */
    void computeCached(PrefillPrompt prompt) {
        if (!prompt.hits.isEmpty()) {
            return;
        }
        for (ComputedLayers.RankLayer at : device.layers().all()) {
            at.content()
                    .compute(pool.memories().get(at.rankIndex()), prompt.name, prompt.pages, 0, prompt.computedTokens);
        }
        reportComputed(prompt, prompt.computedTokens);
    }

    private void reportComputed(PrefillPrompt prompt, int endToken) {
        List<ComputedLayers.RankLayer> parts = device.layers().all();
        for (ComputedLayers.RankLayer at : parts) {
            listener.layerComputed(node.process(), prompt.request, at.rankIndex(), at.layerIndex(), endToken);
        }
    }

    /** Gives the pages that no other prompt holds to their next owner. */
    void giveBack(PrefillPrompt prompt) {
        device.queued().forEach(pass -> pass.giveUp(prompt.request, prompt.entries));
        pool.giveBack(IntStream.range(0, prompt.pages.length)
                .filter(k -> k >= prompt.entries.size()
                        || prompt.entries.get(k) == null
                        || prefixes.giveUp(prompt.entries.get(k)))
                .map(k -> prompt.pages[k])
                .toArray());
        prompt.startAnew();
        onFreed.run();
    }

    void passEnded(ForwardPass pass) {
        prefixes.passEnded(pass);
    }

    void passFailed(ForwardPass pass) {
        prefixes.passFailed(pass);
    }
}
