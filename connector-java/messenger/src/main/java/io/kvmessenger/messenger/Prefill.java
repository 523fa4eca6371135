package io.kvmessenger.messenger;

import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/**
 * One life of a prompt whose KV this prefiller computes and sends. State only, owned by the messenger's thread; {@link
 * Prefiller} drives it.
 */
final class Prefill {
    final String request;
    final String transferId;
    /** 0 until the engine has told: an announced prompt is not tokenised here. */
    int promptTokens;

    final List<ChunkTimeline> chunks = new ArrayList<>();
    /** One for each decoder's messenger that has granted it, whatever has become of it. */
    final List<Delivery> deliveries = new ArrayList<>();

    /** The engine's page indices so far; grown by copying, since submitted writes read the array they were given. */
    private int[] pages = new int[0];

    /** The decoder's ranks that have granted or dismissed it; null until the first has. */
    private EngineRanks heardOf;
    /** The decoder's ranks that will. */
    private EngineRanks toHear;

    /** The engine listens to what becomes of it before it has ended. */
    boolean announced;
    /** The engine has been told that it will not be sent any further. */
    boolean stopTold;
    /** Where the engine has left the context rows; meaningful once it has ended the request. */
    int contextSlot = PeerContextRow.NO_SLOT;

    /** Tokens whose KV is in place in every layer. */
    int settledTokens;
    /** End of the chunk that the running forward pass computes; 0 when it computes none of this prompt. */
    int runningEndToken;

    /** No delivery begins any more. */
    boolean stopped;

    String stopReason = "";
    Reason stopCode = Reason.REASON_UNSPECIFIED;
    /** Counted and told as sent or undelivered. */
    boolean concluded;
    /** The engine has ended the request and waits for its release. */
    boolean engineEnded;
    /** When a finished prefill gives up waiting for its grants. */
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

    /** @param needing all ranks of that decoder that need something of this prefiller */
    void hear(EngineRanks ranks, EngineRanks needing) {
        if (heardOf == null) {
            heardOf = EngineRanks.copyOf(ranks);
            toHear = needing;
        } else if (heardOf.fits(ranks)) {
            heardOf.add(ranks);
        }
    }

    /** Whether a grant of these ranks is the first word from each of them, and from the engine that the others are of. */
    boolean mayHear(EngineRanks ranks) {
        return heardOf == null || (heardOf.fits(ranks) && !heardOf.intersects(ranks));
    }

    /** Every rank of the decoder that needs something has said so, or that it does not. */
    boolean heardOfAll() {
        return heardOf != null && heardOf.containsAll(toHear);
    }

    /** Nothing goes out any more, and nothing will. */
    boolean silent() {
        return !awaitsGrants() && deliveries.stream().allMatch(delivery -> delivery.stopped);
    }

    /** Whether the decoder means another prompt; false while the engine has not told. */
    boolean differsFrom(PageGrant grant) {
        return promptTokens > 0 && grant.promptTokens() != promptTokens;
    }

    String difference(PageGrant grant) {
        return "the prompt has " + promptTokens + " tokens at the prefiller and " + grant.promptTokens()
                + " at the decoder: both must tokenise alike";
    }

    /** The delivery whose writes are not answered for yet, or null. */
    Delivery find(Session session, int imm) {
        for (Delivery delivery : deliveries) {
            if (delivery.holds(session, imm)) {
                return delivery;
            }
        }
        return null;
    }

    String heardFrom() {
        return heardOf == null ? "no rank" : heardOf.toString();
    }

    boolean awaitsGrants() {
        return !stopped && !heardOfAll();
    }

    /** No delivery will begin, and nothing reads the pages for those there were. */
    boolean over() {
        return !awaitsGrants() && writesOver() && deliveries.stream().allMatch(Delivery::over);
    }

    /** Whether a decoder waits for its KV, or for the word that it will not come. */
    boolean owed() {
        return deliveries.stream().anyMatch(Delivery::owed);
    }

    /** No write reads the pages. */
    boolean writesOver() {
        for (Delivery delivery : deliveries) {
            if (delivery.writesInFlight > 0) {
                return false;
            }
        }
        return true;
    }

    boolean sent() {
        return !deliveries.isEmpty() && deliveries.stream().allMatch(delivery -> delivery.sent);
    }

    /** Tokens of a layer that are in place, given how many layers of the running pass have fired. */
    private int readableTokens(int layerOrdinal, int readableLayerCount) {
        return runningEndToken > 0 && layerOrdinal < readableLayerCount ? runningEndToken : settledTokens;
    }

    /** Pages of a layer that are complete: full ones, and the last partial one once the whole prompt is in place. */
    int completePages(int layerOrdinal, int readableLayerCount, int pageTokens) {
        return pagesOf(readableTokens(layerOrdinal, readableLayerCount), pageTokens);
    }

    /** Pages that are complete when so many tokens are in place. */
    int pagesOf(int tokens, int pageTokens) {
        return tokens >= promptTokens ? Math.ceilDiv(promptTokens, pageTokens) : tokens / pageTokens;
    }

    boolean computed() {
        return promptTokens > 0 && settledTokens >= promptTokens;
    }
}
