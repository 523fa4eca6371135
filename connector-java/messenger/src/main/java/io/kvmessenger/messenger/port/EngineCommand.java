package io.kvmessenger.messenger.port;

import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import java.util.OptionalDouble;
import java.util.concurrent.CompletableFuture;

/** What the engine tells the messenger. Values; docs/boundary.md gives their meaning field by field. */
public sealed interface EngineCommand {
    /**
     * A forward pass that computes these chunks is queued or begins. Several may be in flight; each ends by the layer
     * counter.
     *
     * @param stepIndex larger than that of every step before
     * @param counterStart the counter's value when all earlier passes are complete
     */
    record Step(long stepIndex, long counterStart, List<Chunk> chunks) implements EngineCommand {}

    /**
     * One request's part of a forward pass: tokens {@code [firstToken, endToken)}.
     *
     * @param cachedTokens tokens whose KV an earlier, finished pass is known to have written; 0 if uncertain
     * @param pages by group of the geometry
     * @param promptDigest digest of the prompt's content; "" where engines compute none
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
     * @param firstPage position in the prompt of {@code indices[0]}; a position may be repeated, with the same page
     */
    record ChunkPages(int firstPage, int[] indices) {}

    /**
     * The engine has accepted a request and will compute it later. It receives {@link EngineEvents#granted} and
     * {@link EngineEvents#stopped} for it, and ends it with {@link PrefillEnded} even if it never began.
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

    /** Tokens before {@code chunk.endToken} are in place in every layer, reported outside of any step. */
    record Computed(Chunk chunk) implements EngineCommand {}

    /**
     * All kernels of a forward pass are queued; the pass is over and its chunks are in place when the counter reaches
     * the end.
     *
     * @param counterEnd the counter's value when every layer of the pass is complete on every rank
     */
    record StepEnded(long stepIndex, long counterEnd) implements EngineCommand {}

    /** A forward pass has failed: nothing more of its chunks is sent. */
    record StepFailed(long stepIndex) implements EngineCommand {}

    /**
     * The engine has ended a prefill and holds its pages until {@link EngineEvents#released}.
     *
     * @param contextSlot slot of the context rows that are sent after all KV, for each kind that always goes or was
     *     requested; -1 = none
     */
    record PrefillEnded(String request, PrefillOutcome outcome, int contextSlot) implements EngineCommand {
        /** A prefill that ended without context rows. */
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
     * Decoder: the engine has compared the received KV of a prompt's last token with what it computes itself.
     *
     * @param differenceMillionths the largest difference, in millionths of the layer's largest number
     */
    record Compared(ComparisonOutcome outcome, long differenceMillionths, PrefillerAddress prefiller)
            implements EngineCommand {}

    /**
     * Decoder: what came of a request that names another engine to pull from.
     *
     * @param askNs how long the answer took; 0 = nothing was offered
     * @param pullNs how long the fetch of the tokens took; 0 = none was begun
     */
    record PullEnded(PullOutcome outcome, long tokenCount, long askNs, long pullNs) implements EngineCommand {}

    /**
     * Decoder: what tokens take now, from other engines and computed here. All that was reported before is void.
     *
     * @param computeNsPerToken empty = nothing was computed yet
     */
    record Prices(List<SourcePrice> sources, OptionalDouble computeNsPerToken) implements EngineCommand {}

    /** Decoder: the engine does not begin this many fetches, because the prefiller computes another KV than it does. */
    record Refuted(long fetchCount) implements EngineCommand {}

    /**
     * Where a messenger of the prefiller's engine listens.
     *
     * @param engineId the engine id that it is expected to announce; empty when unknown
     */
    record PrefillerAddress(String host, int port, String engineId) {}

    /**
     * The prompt that a decoder-first fetch asks the prefiller's own engine to compute.
     *
     * @param tokenIds empty when the router sends both legs
     * @param cacheSalt restricts which cached pages the prompt may share; "" = no restriction
     */
    record Prompt(int[] tokenIds, String cacheSalt, int priority) {
        public static final Prompt NONE = new Prompt(new int[0], "", 0);

        public boolean absent() {
            return tokenIds.length == 0;
        }
    }

    /**
     * How long a request that pulls has waited before its fetch.
     *
     * @param answerNs from its question to the answer
     * @param pagesNs from the answer until it had pages
     */
    record PullWaits(long answerNs, long pagesNs) {
        public static final PullWaits NONE = new PullWaits(0, 0);

        public long ns() {
            return answerNs + pagesNs;
        }
    }

    /**
     * A decoder requests KV for tokens {@code [firstToken, promptTokens)} into these pages.
     *
     * @param pages by group of the geometry
     * @param contextSlot slot that its context rows are written to; -1 = none
     * @param contextKinds names of the context rows to send in addition to those that always go
     * @param prefillers all messengers of the prefiller's engine; the first one is asked to enqueue a prompt
     * @param promptDigest digest of the prompt's content; together with the id it names the transfer
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
            Prompt prompt,
            PullWaits waits)
            implements EngineCommand {
        /** Number of pages of all groups together. */
        public int pageCount() {
            return pages.stream().mapToInt(group -> group.length).sum();
        }

        public TransferKey transfer() {
            return new TransferKey(transferId, promptDigest);
        }

        /** A fetch of KV alone in a cache of one group, without a digest, whose legs a router sends to both sides. */
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
                    Prompt.NONE,
                    PullWaits.NONE);
        }
    }

    /** A decoder has queued a request that will fetch this transfer: its prefiller must keep the pages until then. */
    record Expect(TransferKey transfer, List<PrefillerAddress> prefillers) implements EngineCommand {}

    /** A decoder will never fetch this transfer: its prefiller need not keep the pages. */
    record Decline(TransferKey transfer, List<PrefillerAddress> prefillers) implements EngineCommand {}

    /**
     * The engine never had the request that would have fetched this transfer, or no longer knows its prompt: its
     * prefiller keeps the pages for a short time only. For a list of prompts, the transfer of the first one is named.
     */
    record Reject(String transferId, List<PrefillerAddress> prefillers) implements EngineCommand {}

    /**
     * The engine wants to know what another engine's prefix cache holds of a prompt: {@link EngineEvents#offered}
     * answers, unless a {@link Decline} of the transfer comes first. A {@link Fetch} of the transfer may follow, with as
     * many prompt tokens as are held.
     *
     * @param transfer new for each question
     * @param limitNs how long the answer may take
     */
    record Ask(String request, TransferKey transfer, PrefillerAddress source, Prompt prompt, long limitNs)
            implements EngineCommand {}

    /**
     * The engine's answer to a peer's question. With tokens that are held it is a prefill which is computed and ended,
     * and {@link EngineEvents#released} follows, once.
     *
     * @param request names the offer, as that of a prefill
     * @param asked whether the question came to this messenger; others of its engine keep their part of the pages
     * @param heldTokens 0 = nothing is held, for the reason in {@code outcome}
     * @param pages by group of the geometry; of all held tokens
     */
    record Offer(
            String request,
            TransferKey transfer,
            boolean asked,
            int heldTokens,
            List<ChunkPages> pages,
            OfferOutcome outcome)
            implements EngineCommand {
        /** What is offered, as tokens of a prompt that are computed. */
        public Chunk chunk() {
            return new Chunk(request, transfer.id(), heldTokens, 0, 0, heldTokens, pages, transfer.digest());
        }

        /** The end of that prompt. */
        public PrefillEnded end() {
            return new PrefillEnded(request, PrefillOutcome.FINISHED);
        }
    }

    /** The engine takes an offer back, which ends it if no grant has come. */
    record Withdraw(String request) implements EngineCommand {}

    /** The engine has ended the request; its pages stay held until the fetch's terminal event. */
    record Abandon(String request) implements EngineCommand {}

    /**
     * The engine has not heard the end of a fetch. It is reported again, as {@link EngineEvents#failed}, once the
     * messenger has no such fetch any more: nothing writes to its pages then.
     */
    record ReportEnd(String request) implements EngineCommand {}
}
