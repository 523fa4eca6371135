package io.kvmessenger.messenger.prefill;

import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.port.ChunkTimeline;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.messenger.port.PrefillFailure;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * One attempt of a prompt whose KV this prefiller computes and sends. State only, owned by the messenger's thread; {@link
 * Prefiller} drives it.
 */
final class Prefill {
    final String request;
    /** Since when the engine has told of it. */
    final long begunNs;
    /** Its digest is "" while the engine has not told it, or makes none. */
    private TransferKey transfer;
    /** 0 until the engine has told: an announced prompt is not tokenised here. */
    int promptTokens;

    final ChunkTimelines chunks = new ChunkTimelines();
    /** One for each decoder's messenger that has granted it, whatever has become of it. */
    final List<Delivery> deliveries = new ArrayList<>();

    /** Where its KV lies, by group, as far as the engine has told. */
    final List<PromptPages> pages;
    /** The decoder's ranks that have granted or dismissed it; null until the first has. */
    EngineRanks answeredRanks;
    /** The decoder's ranks that will. */
    EngineRanks requiredRanks;

    /** The engine listens to what becomes of it before it has ended. */
    boolean announced;
    /** The engine has been told that it will not be sent any further. */
    boolean stopReported;
    /** Where the engine has left the context rows; meaningful once it has ended the request. */
    int contextSlot = ContextSlots.NO_SLOT;

    /** Tokens whose KV is in place in every layer. */
    int settledTokens;
    /** Its chunks of forward passes in flight, oldest first. */
    private final List<RunningChunk> running = new ArrayList<>();

    /** No delivery begins any more. */
    boolean stopped;

    String stopReason = "";
    Reason stopCode = Reason.REASON_UNSPECIFIED;
    /** Counted and told as sent or undelivered. */
    boolean concluded;
    /** The engine has ended the request and waits for its release. */
    boolean engineEnded;
    /** A decoder has rejected a request of this transfer id, and no other has asked for the transfer since. */
    boolean rejected;
    /** When a finished prefill gives up waiting for its grants. */
    long grantDeadlineNs;

    CompletableFuture<Void> fenced;
    /** Since when its last writes are waited for. */
    long fencedNs;

    Prefill(String request, TransferKey transfer, List<KvGroup> groups, long begunNs) {
        this.request = request;
        this.begunNs = begunNs;
        this.transfer = transfer;
        this.pages = groups.stream().map(PromptPages::new).toList();
    }

    TransferKey transfer() {
        return transfer;
    }

    /** A forward pass begins that computes a chunk of the prompt. */
    void begin(EngineCommand.Chunk chunk, StepInFlight step, int layerCount, long nowNs) {
        ChunkTimeline timeline = new ChunkTimeline(chunk.firstToken(), chunk.endToken(), layerCount, nowNs);
        chunks.begin(timeline, chunk.endToken());
        running.add(new RunningChunk(step, chunk.endToken(), timeline));
        step.add(this);
    }

    /** So many of the step's layers can be read. */
    void onReadable(StepInFlight step, long nowNs) {
        for (RunningChunk chunk : running) {
            if (chunk.step() == step) {
                chunk.timeline().onReadableBefore(step.readableLayerCount(), nowNs);
            }
        }
    }

    /** The forward pass is over, and its chunk in place. */
    void stepOver(StepInFlight step, long nowNs) {
        for (RunningChunk chunk : running) {
            if (chunk.step() == step) {
                chunks.onComputed(chunk.timeline(), nowNs);
                settledTokens = Math.max(settledTokens, chunk.endToken());
            }
        }
        running.removeIf(chunk -> chunk.step() == step);
    }

    /** No forward pass that counts computes any more of it. */
    void forgetRunning() {
        running.clear();
    }

    /** A forward pass that computes a chunk of it is not over. */
    boolean inFlight() {
        return !running.isEmpty();
    }

    /** Tokens that are in place when all forward passes in flight are over. */
    private int begunTokens() {
        int tokens = settledTokens;
        for (RunningChunk chunk : running) {
            tokens = Math.max(tokens, chunk.endToken());
        }
        return tokens;
    }

    /** Tokens before the chunk's end are in place in every layer. */
    void onComputed(EngineCommand.Chunk chunk, int layerCount, long nowNs) {
        if (chunk.endToken() > settledTokens) {
            ChunkTimeline timeline = new ChunkTimeline(settledTokens, chunk.endToken(), layerCount, nowNs);
            chunks.begin(timeline, chunk.endToken());
            chunks.onComputed(timeline, nowNs);
            settledTokens = chunk.endToken();
        }
    }

    /** Why a chunk cannot be one of this prompt; empty when it can. */
    String misfit(EngineCommand.Chunk chunk) {
        if (!chunk.transferId().equals(transfer.id())) {
            return "names transfer " + chunk.transferId() + ", expected " + transfer.id() + " as before";
        }
        if (chunk.promptTokens() < 1 || (promptTokens > 0 && chunk.promptTokens() != promptTokens)) {
            return "has a prompt of " + chunk.promptTokens() + " tokens, expected "
                    + (promptTokens > 0 ? promptTokens + " as before" : "at least one");
        }
        if (transfer.tellsPrompt() && !chunk.promptDigest().equals(transfer.digest())) {
            return "has another prompt digest than before, expected the digest of one prompt";
        }
        if (chunk.cachedTokens() > chunk.endToken()
                || chunk.firstToken() > chunk.endToken()
                || chunk.endToken() > chunk.promptTokens()) {
            return "computes tokens " + chunk.firstToken() + " to " + chunk.endToken() + " with " + chunk.cachedTokens()
                    + " cached, expected an end within the prompt's " + chunk.promptTokens();
        }
        if (chunk.pages().size() != pages.size()) {
            return "has page lists of " + chunk.pages().size() + " KV groups, expected one for each of " + pages.size();
        }
        int toldTokens = Math.max(begunTokens(), chunk.cachedTokens());
        for (int group = 0; group < pages.size(); group++) {
            ChunkPages told = chunk.pages().get(group);
            String wrong = pages.get(group).misfit(told);
            wrong = wrong.isEmpty() ? pages.get(group).gap(chunk, told, toldTokens) : wrong;
            if (!wrong.isEmpty()) {
                return wrong + (pages.size() == 1 ? "" : " (KV group " + group + ")");
            }
        }
        return "";
    }

    /** Takes over what a chunk that fits says of the prompt. */
    void take(EngineCommand.Chunk chunk) {
        promptTokens = chunk.promptTokens();
        if (!transfer.tellsPrompt()) {
            transfer = chunk.transfer();
        }
        settledTokens = Math.max(settledTokens, chunk.cachedTokens());
        for (int group = 0; group < pages.size(); group++) {
            pages.get(group).add(chunk.pages().get(group));
        }
    }

    /** @param needing all ranks of that decoder that need something of this prefiller */
    void addAnswer(EngineRanks ranks, EngineRanks needing) {
        if (answeredRanks == null) {
            answeredRanks = EngineRanks.copyOf(ranks);
            requiredRanks = needing;
        } else if (answeredRanks.fits(ranks)) {
            answeredRanks.add(ranks);
        }
    }

    /** Those heard of that have everything, or want nothing (any more): all but those whose deliveries go on. */
    EngineRanks servedRanks() {
        EngineRanks heard = EngineRanks.copyOf(answeredRanks);
        for (Delivery delivery : deliveries) {
            if (!delivery.sent && !delivery.stopped) {
                heard.remove(delivery.grant.ranks());
            }
        }
        return heard;
    }

    /** Whether these ranks have not answered in this attempt. */
    boolean awaitsAnswerOf(EngineRanks ranks) {
        return answeredRanks == null || (answeredRanks.fits(ranks) && !answeredRanks.intersects(ranks));
    }

    /**
     * Whether a grant of these ranks may be the first from each of them, and from the engine that the others are of. What
     * they declined before it counts no more.
     */
    boolean mayAnswer(EngineRanks ranks) {
        return answeredRanks == null
                || (answeredRanks.fits(ranks)
                        && (!answeredRanks.intersects(ranks) || grantsOf(ranks).isEmpty()));
    }

    /** Whether these ranks have had what they granted, or have taken it back: another grant is for another attempt. */
    boolean servedBefore(EngineRanks ranks) {
        List<Delivery> earlier = grantsOf(ranks);
        return !earlier.isEmpty() && earlier.stream().allMatch(Delivery::over);
    }

    private List<Delivery> grantsOf(EngineRanks ranks) {
        return deliveries.stream()
                .filter(delivery -> delivery.grant.ranks().fits(ranks)
                        && delivery.grant.ranks().intersects(ranks))
                .toList();
    }

    /** Ranks that have granted or declined; null when none has. */
    EngineRanks answeredRanks() {
        return answeredRanks == null ? null : EngineRanks.copyOf(answeredRanks);
    }

    /** Every rank of the decoder that needs something has said so, or that it does not. */
    boolean allAnswered() {
        return answeredRanks != null && answeredRanks.containsAll(requiredRanks);
    }

    /** Nothing goes out any more, and nothing will. */
    boolean nothingToSend() {
        return !awaitsGrants() && deliveries.stream().allMatch(delivery -> delivery.stopped);
    }

    /** Why the decoder does not mean what is computed here; empty when it does, and while the engine has not told. */
    String difference(PageGrant grant) {
        if (promptTokens > 0 && grant.promptTokens() != promptTokens) {
            return "the prompt has " + promptTokens + " tokens at the prefiller and " + grant.promptTokens()
                    + " at the decoder: both must tokenise alike";
        }
        boolean told = promptTokens > 0 || transfer.tellsPrompt();
        if (told && !grant.transfer().equals(transfer)) {
            return "transfer " + transfer.id()
                    + " names another prompt at the prefiller than at the decoder (their digests"
                    + " differ): give each request a transfer id of its own, and start both engines with the same"
                    + " tokenizer, adapters and connector version";
        }
        for (PromptPages known : pages) {
            if (known.end() > 0 && known.firstPageFor(grant) < known.first()) {
                return "the decoder wants tokens from " + grant.firstToken()
                        + " on, the prefiller's engine has named pages for those from "
                        + (long) known.first() * known.pageTokens() + " on";
            }
        }
        return "";
    }

    /** The delivery whose writes are not answered for yet, or null. */
    Delivery find(Session session, long grantId) {
        for (Delivery delivery : deliveries) {
            if (delivery.holds(session, grantId)) {
                return delivery;
            }
        }
        return null;
    }

    /** Context rows are being read; all KV has left then. */
    boolean contextUnderWay() {
        return deliveries.stream().anyMatch(d -> d.nextContextRow > 0 && d.writesInFlight > 0);
    }

    String answeredBy() {
        return answeredRanks == null ? "no rank" : answeredRanks.toString();
    }

    boolean awaitsGrants() {
        return !stopped && !allAnswered();
    }

    /** No delivery will begin, and nothing reads the pages for those there were. */
    boolean over() {
        return !awaitsGrants() && writesOver() && deliveries.stream().allMatch(Delivery::over);
    }

    /** Whether a decoder waits for its KV, or for a notice that it will not come. */
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

    private Optional<Delivery> unsent() {
        return deliveries.stream().filter(delivery -> !delivery.sent).findFirst();
    }

    /** Why not all of it was sent, in a sentence; "" where its decoder gave no reason. */
    String failureSentence() {
        return unsent().map(delivery -> delivery.stopReason).orElse(stopReason);
    }

    /** Why not all of it was sent. */
    PrefillFailure failure() {
        return switch (unsent().map(delivery -> delivery.stopCode).orElse(stopCode)) {
            case PREEMPTED -> PrefillFailure.PREEMPTED;
            case PREFILL_ABORTED, NEVER_CAME -> PrefillFailure.ABORTED;
            case EXPIRED -> rejected ? PrefillFailure.UNWANTED : PrefillFailure.EXPIRED;
            case PATH_LOST -> PrefillFailure.PATH_LOST;
            case GRANT_UNFIT -> PrefillFailure.UNGRANTABLE;
            case SHUTTING_DOWN -> PrefillFailure.STOPPING;
            case REASON_UNSPECIFIED, UNRECOGNIZED -> PrefillFailure.UNWANTED;
        };
    }

    /** Tokens of a layer that are in place, as far as the passes in flight have come. */
    private int readableTokens(int layerOrdinal) {
        int tokens = settledTokens;
        for (int i = 0; i < running.size(); i++) {
            RunningChunk chunk = running.get(i);
            if (layerOrdinal < chunk.step().readableLayerCount()) {
                tokens = Math.max(tokens, chunk.endToken());
            }
        }
        return tokens;
    }

    /** Ints that {@link #noteReadable} writes. */
    static final int READABLE_INTS = 3 + 2 * LayerProgress.STEPS_IN_FLIGHT_MAX;

    /** Writes down all that {@link #completePages} depends on; returns false where that is too much. */
    boolean noteReadable(int[] note) {
        note[0] = settledTokens;
        note[1] = promptTokens;
        note[2] = running.size();
        for (int i = 0, at = 3; i < running.size(); i++, at += 2) {
            if (at == READABLE_INTS) {
                return false;
            }
            note[at] = running.get(i).endToken();
            note[at + 1] = running.get(i).step().readableLayerCount();
        }
        return true;
    }

    /** Whether {@link #completePages} says the same as when the note was written. */
    boolean isReadableAs(int[] note) {
        boolean same = note[0] == settledTokens && note[1] == promptTokens && note[2] == running.size();
        for (int i = 0, at = 3; same && i < running.size(); i++, at += 2) {
            same = note[at] == running.get(i).endToken()
                    && note[at + 1] == running.get(i).step().readableLayerCount();
        }
        return same;
    }

    /** Pages of a layer that are complete: full ones, and the last partial one once the whole prompt is in place. */
    int completePages(PieceRoute route) {
        return pages.get(route.groupIndex()).completeWith(readableTokens(route.layerOrdinal()), promptTokens);
    }

    /** All pages of the prompt in a group. */
    int pageCount(int groupIndex) {
        return pages.get(groupIndex).completeWith(promptTokens, promptTokens);
    }

    /** Where pages of a group before {@code toPage} end in the prompt. */
    int tokensTo(int groupIndex, int toPage) {
        return Math.min(promptTokens, toPage * pages.get(groupIndex).pageTokens());
    }

    /** A chunk that ends at this token, or before, has left of a layer when pages of its group before {@code toPage} have. */
    int endTokenLeft(int groupIndex, int toPage) {
        return toPage >= pageCount(groupIndex)
                ? promptTokens
                : Math.min(promptTokens, (toPage + 1) * pages.get(groupIndex).pageTokens()) - 1;
    }

    boolean computed() {
        return promptTokens > 0 && settledTokens >= promptTokens;
    }

    /** It is computed when the forward passes in flight are over, or already. */
    boolean begunToItsEnd() {
        return promptTokens > 0 && begunTokens() >= promptTokens;
    }
}
