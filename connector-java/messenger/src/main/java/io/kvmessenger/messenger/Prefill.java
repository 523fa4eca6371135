package io.kvmessenger.messenger;

import io.kvmessenger.messenger.wire.CannotDeliver;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * One prompt whose KV this prefiller computes and sends. State only, owned by the messenger's thread; {@link Prefiller}
 * drives it.
 *
 * <p>Pages leave in page order, so one number a piece ({@link #nextPage}; a layer is one piece when both sides are sharded
 * alike) says what has been submitted, and it does not matter whether the layer or the grant came first.
 */
final class Prefill {
    final String request;
    final String transferId;
    /** 0 until the engine has told: an announced prompt is not tokenised here. */
    int promptTokens;

    final List<ChunkTimeline> chunks = new ArrayList<>();

    /** The engine's page indices so far; grown by copying, since submitted writes read the array they were given. */
    private int[] pages = new int[0];

    /** The engine listens to what becomes of it before it has ended. */
    boolean announced;

    /** Tokens whose KV is in place in every layer. */
    int settledTokens;
    /** End of the chunk that the running forward pass computes; 0 when it computes none of this prompt. */
    int runningEndToken;

    PageGrant grant;
    /** Next page to submit, by index into {@link Session#routes}; meaningful once granted. */
    int[] nextPage;

    /** Where the engine has left the context rows; meaningful once it has ended the request. */
    int contextSlot = PeerContextRow.NO_SLOT;
    /** Next kind of context row to submit. */
    int nextContextRow;

    int writesInFlight;
    long pagesSent;
    long bytesSent;
    long lastLeftNs;

    /** A write failed: some of its bytes may have been sent, and nobody here knows whether they have landed. */
    boolean mayStillLand;

    /** No write will be submitted any more. */
    boolean stopped;

    String stopReason = "";
    /** How a stop is told to the decoder; unspecified = as the confirmation of its cancel. */
    CannotDeliver.Reason stopCode = CannotDeliver.Reason.REASON_UNSPECIFIED;
    /** All pages have left. */
    boolean sent;
    /** The decoder has been told how it ended, or needs not be. */
    boolean answered;
    /** The engine has ended the request and waits for its release. */
    boolean engineEnded;
    /** When a finished prefill gives up waiting for its grant. */
    long grantDeadlineNs;

    CompletableFuture<Void> fenced;

    Prefill(String request, String transferId) {
        this.request = request;
        this.transferId = transferId;
    }

    /** Tokens before the chunk's end are in place in every layer. */
    void onComputed(EngineCommand.Chunk chunk, int layerCount, long nowNs) {
        if (chunk.endToken() > settledTokens) {
            ChunkTimeline timeline = new ChunkTimeline(settledTokens, chunk.endToken(), layerCount, nowNs);
            timeline.onComputed(nowNs);
            chunks.add(timeline);
            settledTokens = chunk.endToken();
        }
    }

    void addPages(int[] newPages) {
        int from = pages.length;
        pages = Arrays.copyOf(pages, from + newPages.length);
        System.arraycopy(newPages, 0, pages, from, newPages.length);
    }

    int[] pages() {
        return pages;
    }

    /** Tokens of a layer that are in place, given how many layers of the running pass have fired. */
    int readableTokens(int layerOrdinal, int readableLayerCount) {
        return runningEndToken > 0 && layerOrdinal < readableLayerCount ? runningEndToken : settledTokens;
    }

    /** Pages of a layer that are complete: full ones, and the last partial one once the whole prompt is in place. */
    int completePages(int layerOrdinal, int readableLayerCount, int pageTokens) {
        int tokens = readableTokens(layerOrdinal, readableLayerCount);
        return completePages(tokens, pageTokens);
    }

    private int completePages(int tokens, int pageTokens) {
        return tokens >= promptTokens ? Math.ceilDiv(promptTokens, pageTokens) : tokens / pageTokens;
    }

    /** Pieces of a page have been submitted as one. */
    void onSubmitted(int pieceIndex, int joinedCount, long nowNs) {
        if (!chunks.isEmpty()) {
            List<PieceRoute> routes = grant.session().routes;
            for (int i = 0, at = pieceIndex;
                    i < joinedCount;
                    i++, at = routes.get(at).continuation()) {
                chunks.getLast().onSubmitted(routes.get(at).layerOrdinal(), nowNs);
            }
        }
    }

    /** A write has completed: counts it, and marks the chunks whose pages of its layers have all left. */
    void onLeft(LayerWrite write, int pageTokens, long nowNs) {
        writesInFlight--;
        pagesSent += write.pageCount;
        bytesSent += write.bytes;
        lastLeftNs = nowNs;
        for (ChunkTimeline chunk : chunks) {
            if (completePages(chunk.endToken(), pageTokens) <= write.toPage) {
                List<PieceRoute> routes = grant.session().routes;
                for (int i = 0, at = write.pieceIndex;
                        i < write.joinedCount;
                        i++, at = routes.get(at).continuation()) {
                    chunk.onLeft(routes.get(at).layerOrdinal(), nowNs);
                }
            }
        }
    }

    PrefillTimeline timeline() {
        return new PrefillTimeline(
                request,
                transferId,
                promptTokens,
                pagesSent,
                bytesSent,
                grant.receivedNs(),
                lastLeftNs,
                grant.session().peer == null ? "" : grant.session().peer.transport(),
                chunks);
    }

    /** Whether the decoder means another prompt; false while the engine has not told. */
    boolean differsFrom(PageGrant other) {
        return promptTokens > 0 && other.promptTokens() != promptTokens;
    }

    String difference(PageGrant other) {
        return "the prompt has " + promptTokens + " tokens at the prefiller and " + other.promptTokens()
                + " at the decoder: both must tokenise alike";
    }

    /** Whether this grant's writes are not answered for yet. */
    boolean holdsGrant(Session session, int imm) {
        return grant != null && !answered && grant.session() == session && grant.imm() == imm;
    }

    boolean grantedBy(Session session) {
        return grant != null && grant.session() == session;
    }

    /** Whether a decoder waits for its KV, or for the word that it will not come. */
    boolean owed() {
        return grant != null && !sent && !answered;
    }

    /** Whether nothing but writes is left to do. */
    boolean leavesWithoutEngine(boolean contextPending) {
        return grant != null && grant.session().peerReady && computed() && (engineEnded || !contextPending);
    }

    boolean computed() {
        return promptTokens > 0 && settledTokens >= promptTokens;
    }

    boolean everythingSubmitted(int pageCount) {
        for (int next : nextPage) {
            if (next < pageCount) {
                return false;
            }
        }
        return true;
    }
}
