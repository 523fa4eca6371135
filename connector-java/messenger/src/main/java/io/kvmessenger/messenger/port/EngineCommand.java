package io.kvmessenger.messenger.port;

import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** What the engine tells the messenger. Values; docs/boundary.md gives their meaning field by field. */
public sealed interface EngineCommand {
    /**
     * A forward pass is queued, or begins, that computes these chunks. Several may be in flight: each ends by the layer
     * counter.
     *
     * @param stepIndex larger than that of every step before
     * @param counterStart where the counter stands when all passes before it are complete
     */
    record Step(long stepIndex, long counterStart, List<Chunk> chunks) implements EngineCommand {}

    /**
     * One request's part of a forward pass: tokens {@code [firstToken, endToken)}.
     *
     * @param cachedTokens tokens whose KV an earlier, finished pass has written for certain; 0 in doubt
     * @param pages by group of the geometry
     * @param promptDigest of what the prompt holds; "" where engines make none
     */
    record Chunk(
            String request,
            String transferId,
            int promptTokens,
            int cachedTokens,
            int firstToken,
            int endToken,
            List<ChunkPages> pages,
            String promptDigest) {
        public TransferKey transfer() {
            return new TransferKey(transferId, promptDigest);
        }

        /** A chunk of a prompt without a digest, in a cache of one group. */
        public Chunk(
                String request,
                String transferId,
                int promptTokens,
                int cachedTokens,
                int firstToken,
                int endToken,
                int firstPage,
                int[] pages) {
            this(
                    request,
                    transferId,
                    promptTokens,
                    cachedTokens,
                    firstToken,
                    endToken,
                    List.of(new ChunkPages(firstPage, pages)),
                    "");
        }
    }

    /**
     * Pages of one group.
     *
     * @param firstPage position in the prompt of {@code indices[0]}; a position may be told again, with the same page
     */
    record ChunkPages(int firstPage, int[] indices) {}

    /**
     * The engine has taken a request in and will compute it later: it hears {@link EngineEvents#granted} and {@link
     * EngineEvents#stopped} of it, and ends it with {@link PrefillEnded} also when it never began.
     */
    record Announce(String request, String transferId, String promptDigest) implements EngineCommand {
        public TransferKey transfer() {
            return new TransferKey(transferId, promptDigest);
        }

        /** A prompt without a digest. */
        public Announce(String request, String transferId) {
            this(request, transferId, "");
        }
    }

    /** Tokens before {@code chunk.endToken} are in place in every layer, told outside of any step. */
    record Computed(Chunk chunk) implements EngineCommand {}

    /**
     * A forward pass is queued to its end; it is over, and its chunks in place, when the counter has reached that.
     *
     * @param counterEnd where the counter stands when every layer of the pass is complete on every rank
     */
    record StepEnded(long stepIndex, long counterEnd) implements EngineCommand {}

    /** A forward pass has failed: nothing more of what it was to compute is sent. */
    record StepFailed(long stepIndex) implements EngineCommand {}

    /**
     * The engine has ended a prefill and holds its pages until {@link EngineEvents#released}.
     *
     * @param contextSlot where it has left the context rows that go out when all KV has left, each kind that always goes
     *     or was asked for; -1 = none
     */
    record PrefillEnded(String request, PrefillOutcome outcome, int contextSlot) implements EngineCommand {
        /** Ended without context rows. */
        public PrefillEnded(String request, PrefillOutcome outcome) {
            this(request, outcome, ContextSlots.NO_SLOT);
        }
    }

    /** How the engine ended a prefill. */
    enum PrefillOutcome {
        FINISHED,
        ABORTED,
        FAILED
    }

    /**
     * The engine takes these requests' pages back and will compute them again; {@code fenced} completes when nothing
     * reads them.
     */
    record Preempt(List<String> requests, CompletableFuture<Void> fenced) implements EngineCommand {}

    /**
     * Where a messenger of the prefiller's engine listens.
     *
     * @param engineId what it is expected to call itself; empty when unknown
     */
    record PrefillerAddress(String host, int port, String engineId) {}

    /**
     * What a decoder-first fetch asks the prefiller's own engine to compute.
     *
     * @param tokenIds none = the router sends both legs
     * @param cacheSalt whose cached pages it may share; "" = all's
     */
    record Prompt(int[] tokenIds, String cacheSalt, int priority) {
        public static final Prompt NONE = new Prompt(new int[0], "", 0);

        public boolean absent() {
            return tokenIds.length == 0;
        }
    }

    /**
     * A decoder wants KV for tokens {@code [firstToken, promptTokens)} in these pages.
     *
     * @param pages by group of the geometry
     * @param contextSlot where its context rows are to be written; -1 = none go with it
     * @param contextKinds names of the rows that go with it although they do not go with all
     * @param prefillers all messengers of the prefiller's engine; the first one is asked to enqueue a prompt
     * @param promptDigest of what the prompt holds; names the transfer together with its id
     */
    record Fetch(
            String request,
            String transferId,
            List<PrefillerAddress> prefillers,
            int promptTokens,
            int firstToken,
            List<int[]> pages,
            int contextSlot,
            List<String> contextKinds,
            long limitNs,
            String promptDigest,
            Prompt prompt)
            implements EngineCommand {
        /** Of all groups together. */
        public int pageCount() {
            return pages.stream().mapToInt(group -> group.length).sum();
        }

        public TransferKey transfer() {
            return new TransferKey(transferId, promptDigest);
        }

        /** A fetch of KV alone, of a prompt without a digest, that both legs of a router name, in a cache of one group. */
        public Fetch(
                String request,
                String transferId,
                List<PrefillerAddress> prefillers,
                int promptTokens,
                int firstToken,
                int[] pages,
                long limitNs) {
            this(
                    request,
                    transferId,
                    prefillers,
                    promptTokens,
                    firstToken,
                    List.of(pages),
                    ContextSlots.NO_SLOT,
                    List.of(),
                    limitNs,
                    "",
                    Prompt.NONE);
        }
    }

    /** A decoder has queued a request that will fetch this transfer: its prefiller is to keep the pages until then. */
    record Expect(TransferKey transfer, List<PrefillerAddress> prefillers) implements EngineCommand {}

    /** A decoder will never ask for this transfer: its prefiller need not keep the pages. */
    record Decline(TransferKey transfer, List<PrefillerAddress> prefillers) implements EngineCommand {}

    /**
     * The engine never had the request that would have fetched this transfer, or had it and knows its prompt no more: its
     * prefiller keeps the pages for a short time only. Of a list of prompts the transfer of the first is named.
     */
    record Reject(String transferId, List<PrefillerAddress> prefillers) implements EngineCommand {}

    /** The engine has ended the request; its pages stay held until the fetch's terminal event. */
    record Abandon(String request) implements EngineCommand {}

    /** Answers what is still held; for leak checks at rest. */
    record CountHeld(CompletableFuture<HeldCounts> answer) implements EngineCommand {}
}
