package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.port.FetchFailure;
import io.kvmessenger.messenger.port.NanoClock;
import io.kvmessenger.messenger.port.ProtocolLimits;
import java.util.ArrayList;
import java.util.List;

/**
 * Decides what becomes of a session's sources when it has ended. Control and data are two channels: the end of one says
 * nothing of what the other has delivered. What is all here has arrived, and what cannot come any more has failed; the
 * others wait until their writes are counted or can land no more, for a limited time.
 *
 * <p>Owned by the messenger's thread. It does not decide when a session ends.
 */
final class SessionEnds {
    private final Fetches fetches;
    private final FetchEnds ends;
    private final OpenVerdicts verdicts;
    private final NanoClock clock;
    private final ProtocolLimits limits;

    SessionEnds(Fetches fetches, FetchEnds ends, OpenVerdicts verdicts, NanoClock clock, ProtocolLimits limits) {
        this.fetches = fetches;
        this.ends = ends;
        this.verdicts = verdicts;
        this.clock = clock;
        this.limits = limits;
    }

    void onEnded(PrefillerSession session, String reason) {
        FetchFailure why = session.admission == null ? FetchFailure.NOT_CONNECTED : FetchFailure.CONNECTION_LOST;
        boolean proven = session.admission == null || session.admissionClosed;
        List<FetchSource> undecided = new ArrayList<>();
        List<FetchSource> decided = new ArrayList<>();
        for (FetchSource source : fetches.sourcesAt(session)) {
            boolean mayLand = source.holdsWindow() && !proven;
            (mayLand && mayBeFilled(source) ? undecided : decided).add(source);
            if (mayLand) {
                source.become(FetchSource.State.AWAITING_PROOF);
            }
        }
        if (!proven) {
            long nowNs = clock.nowNs();
            verdicts.await(
                    session,
                    new OpenVerdicts.EndedSession(why, reason, undecided),
                    nowNs + limits.verdictLimitNs(session.silentNs(nowNs)));
        }
        decided.forEach(source -> ends.isolated(source.fetch, () -> end(source, why, reason)));
    }

    /**
     * The admission of a session that has not ended is closed, so that all counts are final. What is all here has
     * arrived, but for its checksums, and what fails anyhow need not wait; the others fail for the reason of the session's
     * end.
     */
    void onPathsEnded(PrefillerSession session) {
        for (FetchSource source : fetches.sourcesAt(session)) {
            boolean all = source.holdsWindow() && source.grant.hasAll();
            if (!source.over() && (all || source.fetch.failing())) {
                ends.isolated(source.fetch, () -> endNow(source, all));
            }
        }
    }

    private int endNow(FetchSource source, boolean all) {
        fetches.end(source, all ? FetchSource.State.FILLED : FetchSource.State.DRAINED);
        ends.conclude(source.fetch);
        return 1;
    }

    /** Whether all of a granted source may still arrive without its session. */
    private boolean mayBeFilled(FetchSource source) {
        SourceGrant grant = source.grant;
        boolean allPosted = grant.knowsOwed()
                && (source.state() != FetchSource.State.DRAINING || grant.postedWeight == grant.owedWeight());
        return !source.fetch.failing() && allPosted && ends.hasChecksums(source);
    }

    private int end(FetchSource source, FetchFailure why, String reason) {
        if (source.state() == FetchSource.State.AWAITING_PROOF) {
            ends.fail(source.fetch, why, reason);
        } else if (!source.over()) {
            decide(source, why, reason);
        } else if (!ends.hasChecksums(source)) { // they will never come
            ends.fail(source.fetch, why, reason);
        }
        return 1;
    }

    /** Nothing more can land: the count is final. */
    private int decide(FetchSource source, FetchFailure why, String reason) {
        boolean filled = source.grant.hasAll() && ends.hasChecksums(source);
        fetches.end(source, filled ? FetchSource.State.FILLED : FetchSource.State.DRAINED);
        if (filled) {
            ends.conclude(source.fetch);
        } else {
            ends.fail(source.fetch, why, reason);
        }
        return 1;
    }

    /** The admission of an ended session is closed. */
    void onProven(PrefillerSession session, String detail) {
        OpenVerdicts.EndedSession ended = verdicts.remove(session);
        FetchFailure why = ended == null ? FetchFailure.CONNECTION_LOST : ended.why();
        String reason = ended == null ? detail : ended.reason();
        for (FetchSource source : fetches.sourcesAt(session)) {
            if (!source.over()) {
                ends.isolated(source.fetch, () -> decide(source, why, reason));
            }
        }
    }

    /** Fails undecided sources whose limit has passed: a stopped peer may hold its paths open for ever. */
    int tick(long nowNs) {
        int work = 0;
        for (PrefillerSession late = verdicts.takeOverdue(nowNs); late != null; late = verdicts.takeOverdue(nowNs)) {
            OpenVerdicts.EndedSession ended = verdicts.of(late);
            for (FetchSource source : List.copyOf(ended.undecided())) { // deciding one removes it
                work += ends.isolated(source.fetch, () -> {
                    ends.fail(source.fetch, ended.why(), ended.reason());
                    return 1;
                });
            }
        }
        return work;
    }

    long nextDeadlineNs(long otherwiseNs) {
        return verdicts.nextDeadlineNs(otherwiseNs);
    }
}
