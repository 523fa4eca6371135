package io.kvmessenger.messenger.prefill;

import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.messenger.kv.EngineRanks;
import io.kvmessenger.messenger.port.ChunkTimeline;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import io.kvmessenger.messenger.port.LayerProgress;
import io.kvmessenger.messenger.port.PrefillFailure;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.ProtocolState;
import io.kvmessenger.messenger.wire.CannotDeliver.Reason;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

/**
 * One attempt of a prompt whose KV this prefiller computes and sends. State only, owned by the messenger's thread;
 * {@link Prefiller} drives it.
 */
final class Prefill implements Due {
    /** The states of a prefill; the table of docs/protocol.md. Whether deliveries may begin is another question. */
    enum State implements ProtocolState<State> {
        /** The engine computes it or has it queued. */
        RUNNING,
        /** It was stopped and nothing reads its pages: counted, and kept until the engine ends the request. */
        CONCLUDED,
        /** The engine has ended the request and waits for its release. */
        ENDED,
        /** Nothing reads its pages, and the engine has them back. */
        RELEASED;

        @Override
        public Set<State> next() {
            return switch (this) {
                case RUNNING -> EnumSet.of(CONCLUDED, ENDED);
                case CONCLUDED, ENDED -> EnumSet.of(RELEASED);
                case RELEASED -> EnumSet.noneOf(State.class);
            };
        }
    }

    /** Whether the engine gets events about it before its end. */
    enum Announcement {
        NONE,
        /** The engine has announced it, and gets them. */
        ANNOUNCED,
        /** The engine has had the last one: nothing more of it will be sent. */
        STOP_REPORTED
    }

    final String request;
    /** When the engine first named it. */
    final long begunNs;
    /** Its digest is "" until the engine reports one, or if it computes none. */
    private TransferKey transfer;
    /** 0 until the engine reports it: an announced prompt is not tokenised here. */
    int promptTokens;

    final ChunkTimelines chunks = new ChunkTimelines();
    /** One for each messenger of a decoder that has granted it, in whatever state. */
    final List<Delivery> deliveries = new ArrayList<>();

    /** Its pages by group, as far as the engine has reported them. */
    final List<PromptPages> pages;
    /** The decoder's ranks that have granted or dismissed it; null before the first answer. */
    EngineRanks answeredRanks;
    /** The decoder's ranks whose answers are required. */
    EngineRanks requiredRanks;

    /** Whether it is a cached prefix that another engine has asked for, and not a prompt that is sent to its decoder. */
    private boolean offer;
    /** The session that asked for an offer; null for a prompt of the engine, and if another of its messengers was asked. */
    private DecoderSession offeredTo;

    Announcement announcement = Announcement.NONE;
    /** The engine's slot of its context rows; meaningful once the engine has ended the request. */
    int contextSlot = ContextSlots.NO_SLOT;

    /** Tokens whose KV is in place in every layer. */
    int settledTokens;
    /** Its chunks of forward passes in flight, oldest first. */
    private final List<RunningChunk> running = new ArrayList<>();

    private State state = State.RUNNING;
    /** Why no delivery begins any more; null while one may. */
    private Stop stop;
    /** Why every rank of its decoder has dismissed it; "" while a rank may still grant it. */
    String unwanted = "";

    /** A decoder has rejected a request of this transfer id, and no other has asked for the transfer since. */
    boolean rejected;
    /** When a finished prefill gives up waiting for its grants. */
    long grantDeadlineNs;

    CompletableFuture<Void> fenced;
    /** Since when its last writes have been awaited. */
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

    State state() {
        return state;
    }

    /** @throws IllegalStateException if that state may not follow */
    void become(State next) {
        state = ProtocolState.change(state, next);
    }

    boolean ended() {
        return state == State.ENDED || state == State.RELEASED;
    }

    boolean announced() {
        return announcement != Announcement.NONE;
    }

    /** Whether no delivery begins any more. */
    boolean stopped() {
        return stop != null;
    }

    void stop(Stop why) {
        stop = why;
    }

    /** Why no delivery begins any more; null while one may. */
    Stop stop() {
        return stop;
    }

    /** A forward pass begins that computes a chunk of the prompt. */
    void begin(EngineCommand.Chunk chunk, StepInFlight step, int layerCount, long nowNs) {
        ChunkTimeline timeline = new ChunkTimeline(chunk.firstToken(), chunk.endToken(), layerCount, nowNs);
        chunks.begin(timeline, chunk.endToken());
        running.add(new RunningChunk(step, chunk.endToken(), timeline));
        step.add(this);
    }

    /** Notes how many of the step's layers are readable. */
    void onReadable(StepInFlight step, long nowNs) {
        for (RunningChunk chunk : running) {
            if (chunk.step() == step) {
                chunk.timeline().onReadableBefore(step.readableLayerCount(), nowNs);
            }
        }
    }

    /** The forward pass is over and its chunk in place. */
    void stepOver(StepInFlight step, long nowNs) {
        for (RunningChunk chunk : running) {
            if (chunk.step() == step) {
                chunks.onComputed(chunk.timeline(), nowNs);
                settledTokens = Math.max(settledTokens, chunk.endToken());
            }
        }
        running.removeIf(chunk -> chunk.step() == step);
    }

    /** Drops its chunks in flight: the forward passes that computed them do not count any more. */
    void forgetRunning() {
        running.clear();
    }

    /** Whether a forward pass that computes a chunk of it is not over. */
    boolean inFlight() {
        return !running.isEmpty();
    }

    /** Tokens that will be in place when all forward passes in flight are over. */
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
        if (transfer.hasDigest() && !chunk.promptDigest().equals(transfer.digest())) {
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
        int reportedTokens = Math.max(begunTokens(), chunk.cachedTokens());
        for (int group = 0; group < pages.size(); group++) {
            ChunkPages reported = chunk.pages().get(group);
            String wrong = pages.get(group).misfit(reported);
            wrong = wrong.isEmpty() ? pages.get(group).gap(chunk, reported, reportedTokens) : wrong;
            if (!wrong.isEmpty()) {
                return wrong + (pages.size() == 1 ? "" : " (KV group " + group + ")");
            }
        }
        return "";
    }

    /** Takes over the prompt's data from a chunk that fits. */
    void take(EngineCommand.Chunk chunk) {
        promptTokens = chunk.promptTokens();
        if (!transfer.hasDigest()) {
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

    /** Ranks that have answered and to which no delivery is in progress: they have everything, or need nothing. */
    EngineRanks servedRanks() {
        EngineRanks heard = EngineRanks.copyOf(answeredRanks);
        for (Delivery delivery : deliveries) {
            if (delivery.open()) {
                heard.remove(delivery.grant.ranks());
            }
        }
        return heard;
    }

    boolean awaitsAnswerOf(EngineRanks ranks) {
        return answeredRanks == null || (answeredRanks.fits(ranks) && !answeredRanks.intersects(ranks));
    }

    /**
     * Whether a grant of these ranks is acceptable: they belong to the same engine as the earlier ones and have not
     * granted yet. An earlier decline of theirs does not count.
     */
    boolean mayAnswer(EngineRanks ranks) {
        return answeredRanks == null
                || (answeredRanks.fits(ranks)
                        && (!answeredRanks.intersects(ranks) || grantsOf(ranks).isEmpty()));
    }

    /** Whether these ranks' grants have been served or taken back: another grant of theirs is for another attempt. */
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

    /** Whether every rank of the decoder that needs something has granted or declined. */
    boolean allAnswered() {
        return answeredRanks != null && answeredRanks.containsAll(requiredRanks);
    }

    /** Whether nothing will be sent any more. */
    boolean nothingToSend() {
        return !awaitsGrants() && deliveries.stream().allMatch(Delivery::stopped);
    }

    /** Why the decoder means another prompt; empty when it does not, and until the engine has reported the prompt. */
    String difference(PageGrant grant) {
        if (promptTokens > 0 && grant.promptTokens() != promptTokens) {
            return "the prompt has " + promptTokens + " tokens at the prefiller and " + grant.promptTokens()
                    + " at the decoder: both must tokenise alike";
        }
        boolean reported = promptTokens > 0 || transfer.hasDigest();
        if (reported && !grant.transfer().equals(transfer)) {
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

    /**
     * Makes it an offer.
     *
     * @param asker null if the question came to another messenger of this engine
     */
    void offerTo(DecoderSession asker) {
        offer = true;
        offeredTo = asker;
    }

    boolean isOffer() {
        return offer;
    }

    boolean isOfferedTo(DecoderSession session) {
        return offeredTo == session;
    }

    /** Whether a grant of this session may be for it: each messenger of an engine that has asked grants its part. */
    boolean isFor(DecoderSession session) {
        return offeredTo == null || offeredTo.peerEngineId.equals(session.peerEngineId);
    }

    /** The delivery of this grant, if its answer has not been sent; else null. */
    Delivery find(DecoderSession session, long grantId) {
        for (Delivery delivery : deliveries) {
            if (delivery.holds(session, grantId)) {
                return delivery;
            }
        }
        return null;
    }

    /** Whether context rows are in flight, which implies that all KV has left. */
    boolean contextUnderWay() {
        return deliveries.stream().anyMatch(Delivery::contextUnderWay);
    }

    String answeredBy() {
        return answeredRanks == null ? "no rank" : answeredRanks.toString();
    }

    boolean awaitsGrants() {
        return !stopped() && !allAnswered();
    }

    /** Whether no delivery will begin and nothing reads the pages for earlier ones. */
    boolean over() {
        return !awaitsGrants() && writesOver() && deliveries.stream().allMatch(Delivery::over);
    }

    /** Whether a decoder waits for its KV, or for a notice that it will not come. */
    boolean owed() {
        return deliveries.stream().anyMatch(Delivery::owed);
    }

    /** Whether no write reads the pages. */
    boolean writesOver() {
        for (Delivery delivery : deliveries) {
            if (delivery.writesInFlight > 0) {
                return false;
            }
        }
        return true;
    }

    boolean sent() {
        return !deliveries.isEmpty() && deliveries.stream().allMatch(Delivery::sent);
    }

    /** Why not all of it was sent; its sentence is "" where its decoder gave no reason. */
    Stop shortfall() {
        Optional<Delivery> unsent =
                deliveries.stream().filter(delivery -> !delivery.sent()).findFirst();
        if (unsent.isPresent()) {
            return unsent.get().stop();
        }
        Stop own = stopped() ? stop : Stop.NONE;
        return unwanted.isEmpty() ? own : new Stop(Reason.REASON_UNSPECIFIED, unwanted);
    }

    /** Why not all of it was sent, as it is counted. */
    PrefillFailure failure() {
        return switch (shortfall().reason()) {
            case PREEMPTED -> PrefillFailure.PREEMPTED;
            case PREFILL_ABORTED, NEVER_CAME -> PrefillFailure.ABORTED;
            case EXPIRED -> rejected ? PrefillFailure.UNWANTED : PrefillFailure.EXPIRED;
            case PATH_LOST -> PrefillFailure.PATH_LOST;
            case GRANT_UNFIT -> PrefillFailure.UNGRANTABLE;
            case SHUTTING_DOWN -> PrefillFailure.STOPPING;
            case REASON_UNSPECIFIED, UNRECOGNIZED -> PrefillFailure.UNWANTED;
        };
    }

    /** Tokens of a layer that are in place, including those of passes in flight. */
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

    /** Length of the note that {@link #noteReadable} writes. */
    static final int READABLE_INTS = 3 + 2 * LayerProgress.STEPS_IN_FLIGHT_MAX;

    /** Notes everything that {@link #completePages} depends on; returns false if it does not fit. */
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

    /** Whether {@link #completePages} still returns the same as when the note was written. */
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

    /** Number of pages of the prompt in a group. */
    int pageCount(int groupIndex) {
        return pages.get(groupIndex).completeWith(promptTokens, promptTokens);
    }

    /** End, in tokens of the prompt, of a group's pages before {@code toPage}. */
    int tokensTo(int groupIndex, int toPage) {
        return Math.min(promptTokens, toPage * pages.get(groupIndex).pageTokens());
    }

    /** Chunks that end at this token or before have left of a layer once its pages before {@code toPage} have. */
    int endTokenLeft(int groupIndex, int toPage) {
        return toPage >= pageCount(groupIndex)
                ? promptTokens
                : Math.min(promptTokens, (toPage + 1) * pages.get(groupIndex).pageTokens()) - 1;
    }

    boolean computed() {
        return promptTokens > 0 && settledTokens >= promptTokens;
    }

    /** Whether the prompt is complete once the forward passes in flight are over. */
    boolean begunToItsEnd() {
        return promptTokens > 0 && begunTokens() >= promptTokens;
    }
}
