package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.kv.Isolation;
import io.kvmessenger.messenger.kv.KvPorts;
import io.kvmessenger.messenger.port.EngineEvents;
import io.kvmessenger.messenger.port.FetchFailure;
import io.kvmessenger.messenger.port.History;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.messenger.session.PeerText;
import io.kvmessenger.messenger.session.Sessions;
import io.kvmessenger.messenger.wire.Cancel;
import io.kvmessenger.messenger.wire.CancelConfirmed;
import io.kvmessenger.messenger.wire.CannotDeliver;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Shares;
import java.util.function.IntSupplier;

/**
 * Ends fetches. A source ends when everything has arrived, when everything posted has been counted, or when there is
 * proof that nothing can write; the fetch ends when all its sources have.
 *
 * <p>Owned by the messenger's thread. It begins no fetch, but grants a source again when its prefiller has preempted
 * the prompt.
 */
final class FetchEnds {
    private final Fetches fetches;
    private final GrantSender grants;
    private final PrefillerLinks links;
    private final Sessions sessions;
    private final OpenVerdicts verdicts;
    private final PageVerifier verifier;
    private final ArrivalReport arrivals;
    private final PageShares shares;
    private final boolean contextless;
    private final EngineEvents engine;
    private final Tally tally;
    private final History history;
    private final NanoClock clock;
    private final ProtocolLimits limits;

    FetchEnds(
            Fetches fetches,
            GrantSender grants,
            PrefillerLinks links,
            Sessions sessions,
            OpenVerdicts verdicts,
            Decoder.Cache cache,
            KvPorts ports,
            ProtocolLimits limits) {
        this.fetches = fetches;
        this.grants = grants;
        this.links = links;
        this.sessions = sessions;
        this.verdicts = verdicts;
        this.engine = ports.engine();
        this.tally = ports.tally();
        this.history = ports.history();
        this.clock = ports.clock();
        this.limits = limits;
        this.contextless = cache.context().isEmpty();
        this.verifier = new PageVerifier(cache.checksumMode(), cache.memory(), cache.context(), tally, this::damaged);
        this.shares = new PageShares(cache.geometry());
        this.arrivals = new ArrivalReport(cache.geometry(), engine, tally, history, clock);
    }

    /** Runs work for a fetch; a bug in it fails this fetch alone. */
    int isolated(Fetch fetch, IntSupplier work) {
        return Isolation.run(work, bug -> {
            if (fetch.failing()) {
                return 0;
            }
            tally.add(MessengerMetric.FAULTS_CONTAINED, 1);
            fail(
                    fetch,
                    FetchFailure.FAULT,
                    "a bug in the messenger, met by transfer " + fetch.ask.transferId() + ": " + bug);
            return 1;
        });
    }

    private void damaged(Fetch fetch, String sentence) {
        fail(fetch, FetchFailure.DAMAGED, sentence);
    }

    /**
     * Marks the fetch as failed; it ends as soon as no source can write any more. Only the first reason is kept. The
     * engine is notified at once if that may take long.
     */
    void fail(Fetch fetch, FetchFailure why, String sentence) {
        if (!fetch.failing()) {
            fetches.fail(fetch, why, sentence);
            fetch.sources.forEach(this::giveUp);
        }
        reportQuarantined(fetch);
        conclude(fetch);
    }

    private void giveUp(FetchSource source) {
        switch (source.state()) {
            case WAITING -> {
                fetches.end(source, FetchSource.State.DRAINED);
                links.decline(source.session, source.fetch.transfer);
            }
            case GRANTED -> {
                if (source.session.admissionClosed) { // nothing is left to cancel
                    fetches.end(source, FetchSource.State.DRAINED);
                    return;
                }
                source.become(FetchSource.State.CANCELLING);
                source.grant.confirmDeadlineNs = clock.nowNs() + limits.silenceLimitNs();
                fetches.endBegins(source);
                tally.add(MessengerMetric.CANCELS_SENT, 1);
                sessions.send(
                        source.session,
                        ControlFrame.newBuilder()
                                .setCancel(Cancel.newBuilder()
                                        .setTransferId(source.fetch.transfer.id())
                                        .setPromptDigest(source.fetch.transfer.digest())
                                        .setGrantId(source.grant.id)));
            }
            case DRAINING -> {
                if (source.grant.again) { // the prompt's next attempt waits for a grant or a decline
                    source.grant.again = false;
                    links.decline(source.session, source.fetch.transfer);
                }
            }
            case AWAITING_PROOF -> verdicts.decided(source);
            case CANCELLING, FILLED, DRAINED -> {}
        }
    }

    /**
     * All that was expected of a source has arrived, so nothing of it will follow, whatever its state was. One that has
     * yet to say that all pages are its own is looked at when it has: its window may be full before.
     */
    void onWindowFilled(long grantId) {
        FetchSource source = fetches.grantedBy(grantId);
        if (source != null && !source.over() && !endIfDrained(source) && source.grant.knowsOwed()) {
            fetches.end(source, FetchSource.State.FILLED);
            verdicts.decided(source);
            conclude(source.fetch);
        }
    }

    void onWindowOvershot(long grantId, long arrivedWeight, long expectedWeight) {
        FetchSource source = fetches.grantedBy(grantId);
        if (source == null || source.over()) {
            return;
        }
        tally.add(MessengerMetric.WINDOWS_OVERSHOT, 1);
        String sentence = "transfer " + source.fetch.ask.transferId() + " got " + arrivedWeight + " pages where "
                + expectedWeight + " were expected";
        sessions.end(source.session, sentence);
        fail(source.fetch, FetchFailure.CONNECTION_LOST, sentence); // its session may have ended before
    }

    void onCannotDeliver(PrefillerSession session, CannotDeliver message) {
        TransferKey transfer = new TransferKey(message.getTransferId(), message.getPromptDigest());
        FetchSource source = find(session, message.getGrantId());
        boolean preempted = message.getReason() == CannotDeliver.Reason.PREEMPTED;
        if (source == null) { // this message crossed a cancellation or the arrival of the last byte
            if (preempted) {
                declineNextAttempt(session, transfer);
            }
            return;
        }
        boolean again = preempted && !source.fetch.failing();
        if (!drain(source, message.getPostedWeight(), again)) {
            return;
        }
        if (!again) {
            fail(
                    source.fetch,
                    failureOf(message.getReason()),
                    session.explained(PeerText.oneLine(message.getSentence())));
        }
        endIfDrained(source);
    }

    void onCancelConfirmed(PrefillerSession session, CancelConfirmed message) {
        FetchSource source = find(session, message.getGrantId());
        if (source == null) {
            return;
        }
        long postedWeight = message.hasPostedWeight() ? message.getPostedWeight() : source.grant.owedWeight();
        if (drain(source, postedWeight, false)) {
            tally.add(MessengerMetric.CANCELS_CONFIRMED, 1);
            fail(
                    source.fetch,
                    FetchFailure.FAULT,
                    source.session.peerName() + " confirmed a cancellation that was not asked for");
            endIfDrained(source);
        }
    }

    private static FetchFailure failureOf(CannotDeliver.Reason reason) {
        return switch (reason) {
            case NEVER_CAME -> FetchFailure.NEVER_CAME;
            case EXPIRED -> FetchFailure.EXPIRED;
            case PATH_LOST -> FetchFailure.PATH_LOST;
            case GRANT_UNFIT -> FetchFailure.UNGRANTABLE;
            case SHUTTING_DOWN -> FetchFailure.PREFILLER_STOPPING;
            case PREFILL_ABORTED, PREEMPTED, REASON_UNSPECIFIED, UNRECOGNIZED -> FetchFailure.PREFILL_ABORTED;
        };
    }

    /** Records that the prefiller posts nothing more. Repeats are ignored. The source ends once all is counted. */
    private boolean drain(FetchSource source, long postedWeight, boolean again) {
        if (source.state() == FetchSource.State.DRAINING) {
            return false;
        }
        if (postedWeight < 0 || postedWeight > source.grant.expectedWeight) {
            tally.add(MessengerMetric.FRAMES_INVALID, 1);
            sessions.end(
                    source.session,
                    source.session.peerName() + " says that it posted " + postedWeight + " pages, at most "
                            + source.grant.expectedWeight + " were granted");
            return false;
        }
        source.drain(postedWeight, again, clock.nowNs() + limits.silenceLimitNs());
        fetches.endBegins(source);
        return true;
    }

    /** Ends a source whose posted writes have all been counted: nothing of them can land any more. */
    boolean endIfDrained(FetchSource source) {
        boolean mayLand = source.grant.again || !source.session.admissionClosed;
        if (source.state() != FetchSource.State.DRAINING
                || (mayLand && source.grant.arrivedWeight() < source.grant.postedWeight)) {
            return false;
        }
        if (source.grant.arrivedWeight() > source.grant.postedWeight) {
            onWindowOvershot(source.grant.id, source.grant.arrivedWeight(), source.grant.postedWeight);
        } else if (source.grant.again && source.grant.hasAll() && hasChecksums(source)) {
            fetches.end(source, FetchSource.State.FILLED);
            declineNextAttempt(source.session, source.fetch.transfer);
            conclude(source.fetch);
        } else if (source.grant.again) {
            fetches.end(source, FetchSource.State.WAITING);
            if (source.session.takesWork()) { // else it ends with its session
                tally.add(MessengerMetric.FETCHES_REGRANTED, 1);
                grants.send(source);
            }
        } else {
            fetches.end(source, FetchSource.State.DRAINED);
            conclude(source.fetch);
        }
        return true;
    }

    /** A preempted prompt is all here: its next attempt need not wait for a grant, unless another fetch of it does. */
    private void declineNextAttempt(PrefillerSession session, TransferKey transfer) {
        boolean mayBeSeveral = transfer.hasDigest() && contextless; // then each request needs an answer of its own
        if (mayBeSeveral
                || fetches.sourcesAt(session).stream().noneMatch(source -> source.isOf(transfer) && !source.over())) {
            links.decline(session, transfer);
        }
    }

    /**
     * The source that a prefiller's message refers to: one that may still be written to, or one that is filled and
     * still lacks checksums. Answers to an earlier grant or to a grant of another session match none.
     */
    private FetchSource find(PrefillerSession session, long grantId) {
        FetchSource source = fetches.grantedBy(grantId);
        if (source == null || source.session != session) {
            return null;
        }
        boolean unverified = source.state() == FetchSource.State.FILLED && !hasChecksums(source);
        return source.holdsWindow() || unverified ? source : null;
    }

    void onChecksums(PrefillerSession session, Checksums message) {
        FetchSource source = fetches.grantedBy(message.getGrantId());
        if (source == null
                || source.session != session
                || (source.state() != FetchSource.State.GRANTED && source.state() != FetchSource.State.FILLED)) {
            return;
        }
        String wrong = verifier.add(source, message);
        if (!wrong.isEmpty()) {
            tally.add(MessengerMetric.FRAMES_INVALID, 1);
            sessions.end(session, session.peerName() + " sent " + wrong);
        }
    }

    /** A source says which of the granted pages its ranks have: what it owes is known from now on. */
    void onShares(PrefillerSession session, Shares message) {
        FetchSource source = fetches.grantedBy(message.getGrantId());
        if (source == null || source.session != session || source.over()) {
            return;
        }
        String wrong = shares.take(source, message);
        if (!wrong.isEmpty()) {
            tally.add(MessengerMetric.FRAMES_INVALID, 1);
            sessions.end(session, session.peerName() + " sent " + wrong);
            return;
        }
        fetches.endBegins(source);
        endIfCounted(source);
    }

    /** Ends a source of which all that it owes has been counted; its window reports that only if it owes all pages. */
    boolean endIfCounted(FetchSource source) {
        if (!source.counting() || source.grant.arrivedWeight() < source.grant.owedWeight()) {
            return false;
        }
        if (source.grant.hasAll()) {
            onWindowFilled(source.grant.id);
        } else {
            onWindowOvershot(source.grant.id, source.grant.arrivedWeight(), source.grant.owedWeight());
        }
        return true;
    }

    /** Begins a duty cycle: the bytes compared in one cycle are bounded, however many fetches are filled. */
    void beginCycle() {
        verifier.beginCycle();
    }

    /** Compares some pages of a filled fetch. Returns 1 if there was something to do, else 0. */
    int verify(Fetch fetch) {
        if (fetch.ended || fetch.failing() || !fetch.covered || !fetch.filled()) {
            return 0;
        }
        long bytes = verifier.advance(fetch);
        conclude(fetch);
        return bytes > 0 || fetch.ended ? 1 : 0;
    }

    /** Whether all checksums of the source have been received, or none are requested. */
    boolean hasChecksums(FetchSource source) {
        return verifier.hasChecksums(source.grant);
    }

    /** Notifies the engine, once, that a source of a failing fetch can only end by proof: that may take long. */
    private void reportQuarantined(Fetch fetch) {
        if (!fetch.quarantineReported && fetch.awaitsProof()) {
            fetch.quarantineReported = true;
            engine.quarantined(fetch.ask.request(), fetch.failureSentence);
        }
    }

    /** Tells the engine how the fetch ended, once all its sources are over. */
    void conclude(Fetch fetch) {
        if (fetch.ended || !fetch.over() || !(fetch.failing() || verifier.verified(fetch))) {
            return;
        }
        String gap = fetch.failing() ? "" : shares.gap(fetch);
        if (!gap.isEmpty()) {
            fail(fetch, FetchFailure.UNGRANTABLE, gap);
            return;
        }
        fetch.ended = true;
        fetches.remove(fetch);
        if (fetch.failing()) {
            tally.add(MessengerMetric.FETCHES_FAILED, fetch.failure);
            if (fetch.failure != FetchFailure.ABANDONED) {
                countAtSources(fetch, MessengerMetric.PEER_FETCHES_FAILED);
            }
            history.fetchFailed(
                    fetch.ask.request(), fetch.transfer, clock.nowNs(), fetch.failure, fetch.failureSentence);
            engine.failed(fetch.ask.request(), fetch.failureSentence);
        } else if (fetch.covered && fetch.filled()) {
            arrivals.arrived(fetch);
            countAtSources(fetch, MessengerMetric.PEER_FETCHES_ARRIVED);
        } else {
            throw new AssertionError("the sources of transfer " + fetch.ask.transferId() + " are over, and not filled");
        }
    }

    private static void countAtSources(Fetch fetch, MessengerMetric metric) {
        for (FetchSource source : fetch.sources) {
            source.session.figures().add(metric, 1);
        }
    }
}
