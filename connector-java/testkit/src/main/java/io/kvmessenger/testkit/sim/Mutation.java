package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.testkit.sim.Scenario.Weather;
import io.kvmessenger.transfer.engine.EngineLimits;

/** A deliberate bug, to show that the checkers detect it. Injected at the ports, not in production code. */
public enum Mutation {
    NONE,
    /** The decoder frees pages when the cancel is sent, not when it is confirmed. */
    FREE_ON_CANCEL,
    /** The decoder expects one page less than will come. */
    EXPECTATION_OFF_BY_ONE,
    /**
     * A slot is reused with the same generation, where only the generation protects: at a target that checks writes, by
     * a decoder that does not wait until everything posted has been counted.
     */
    GENERATION_IGNORED,
    /** A layer is taken as readable while it is being computed. */
    COUNTER_READ_EARLY,
    /** A layer is taken as readable when the first rank has it, and the others do not. */
    COUNTER_LAG_LOST,
    /** A pass counts as over as soon as it is queued to its end. */
    STEP_OVER_WHEN_REPORTED,
    /** A step that begins while another is in flight is counted from the start of the other one. */
    STEP_BASE_FORGOTTEN,
    /** A device does not count the end of a pass: with all hooked layers counted it is taken as over. */
    PASS_END_NOT_COUNTED,
    /** A pass that is not reported to the messenger is omitted from the start of the next one. */
    UNTOLD_PASS_NOT_COUNTED,
    /** A page in the engine's prefix cache counts as written. */
    COMMITTED_TAKEN_AS_WRITTEN,
    /** A pass that is to be reported after its end is reported at its beginning. */
    COMPUTED_REPORTED_EARLY,
    /** A group's pages are reported in place of another's. */
    GROUPS_MIXED,
    /** Silence is never acted on. */
    HEARTBEAT_IGNORED,
    /** A grant that was served is served again. */
    DUPLICATE_GRANT_ACCEPTED,
    /** An answer to a grant is taken for one to a later grant whose immediate is the same. */
    ANSWERED_BY_IMMEDIATE,
    /** Some writes arrive with a bit flipped. */
    PAYLOAD_DAMAGED,
    /** A counter includes what was posted for its window and has not landed yet. */
    COUNTED_WHEN_POSTED,
    /** Bytes in host memory are counted before a device has copied them on. */
    COUNTED_BEFORE_COPIED,
    /** Closing a window does not wait for a device's copies into its pages. */
    FREED_BEFORE_COPIED,
    /** Gathered pages are sent as soon as their copies are queued. */
    SENT_BEFORE_GATHERED,
    /** While a device copies, the worker does not check whether it is done. */
    COPIES_NOT_LOOKED_AT(Weather.SOUND),
    /** Each copy takes as long as a message and waits for the previous one: gathering is slow, but completes. */
    COPIES_AS_SLOW_AS_HOPS(Weather.SOUND),
    /** Closing a stream does not wait for copies in progress. */
    COPIES_OUTLIVE_STREAM,
    /** A fetch is reported as arrived when the first of its sources has sent everything. */
    ONE_SOURCE_SUFFICES,
    /** The completion of one request is reported for another one in flight. */
    ANOTHER_COMPLETED,
    /** A window and its pages are freed when their peer's admission is revoked, while the peer can still write. */
    FREED_WITHOUT_PROOF(Hardships.Kind.CLOCKS),
    /** Writes are not checked against allowances, and another one is submitted after an allowance has ended. */
    ALLOWANCE_UNCHECKED,
    /** A prefiller finds the prompt of a grant by its id alone. */
    DIGEST_IGNORED,
    /** A prefiller serves an id once: a grant for another prompt under it is not answered. */
    ID_SERVED_ONCE,
    /** The rejection of a request ends the transfer, as if its decoder had declined it. */
    REJECTION_ENDS_TRANSFER,
    /** A prefiller does not receive the rejection of a request. */
    REJECTION_LOST(Weather.SOUND),
    /** A prefiller does not receive its decoder's announcement of a queued request. */
    EXPECTATION_LOST,
    /** A messenger does not receive its prefiller's announcement of a queued request. */
    ANNOUNCEMENT_LOST,
    /** A fetch is reported as arrived when its KV is there, but possibly not its context rows. */
    CONTEXT_NOT_EXPECTED,
    /** The context rows of the first slot are sent, whichever request's they are. */
    CONTEXT_OF_ANOTHER,
    /** A decoder requests no rows and waits for none, whatever its engine asks for. */
    REQUESTED_ROW_FORGOTTEN,
    /** A prefiller omits rows that were requested. */
    REQUESTED_ROW_LEFT_OUT,
    /** A prefiller sends rows that were not requested. */
    UNREQUESTED_ROW_SENT,
    /** Writes of a broken lane are posted again, including those that its target took. */
    REPEATED_THOUGH_TAKEN(Weather.QUIET),
    /** Writes of a broken lane are not posted again. */
    LOST_AND_NOT_REPEATED(Weather.QUIET),
    /** Writes that a lane has read count as sent, and are not posted again when the lane breaks. */
    SENT_WHEN_READ(Weather.QUIET),
    /** Writes of a lane are posted again before its target has confirmed that nothing more of them lands. */
    REPEATED_UNPROVEN,
    /** Writes of the last lane of a domain are not posted to the next domain. */
    FALL_FORGETS(Weather.QUIET),
    /** A path is never given up, however long it reports nothing about its posts. */
    SILENCE_BORNE(Weather.QUIET),
    /** An engine that waits for grants does not receive them. */
    GRANT_NOT_REPORTED,
    /** Of several writes whose checksums come at once, the pages of the last are not compared. */
    COMPARISON_LEFT_OUT,
    /** The same, only of a transfer that the decoder has granted before. */
    COMPARISON_LEFT_OUT_AGAIN,
    /** The checksum of one write is sent twice, and that of the next one of its weight never. */
    CHECKSUM_OF_ANOTHER,
    /** A write that its full queue has refused counts as accepted. */
    FULL_QUEUE_TAKEN_AS_ACCEPTED(Hardships.Kind.PORTS),
    /** The pages of a fetch that is given up early are free at once. */
    QUARANTINE_SKIPPED(Hardships.Kind.CLOCKS),
    /** What a decoder waits for when a control link ends has failed, whatever has been written. */
    VERDICT_BEFORE_PROOF,
    /** What is offered to a peer is free as soon as it is offered. */
    RELEASED_AT_OFFER(Hardships.Kind.PULLS),
    /** An engine offers a page that a pass is still computing. */
    OFFERED_BEFORE_WRITTEN(Hardships.Kind.PULLS),
    /** An offer that comes when its question has ended as late answers it again. */
    LATE_OFFER_ACCEPTED(Hardships.Kind.PULLS),
    /** An offer that was taken back is free, and a grant of it is served all the same. */
    WITHDRAWN_OFFER_GRANTED(Hardships.Kind.PULLS),
    /** The offers of a session that ended are kept until their own limit. */
    OFFER_OF_ENDED_SESSION_KEPT(Hardships.Kind.PULLS),
    /** What is pulled is used when the first of the engine's messengers has its part. */
    PULL_LANDED_WITH_FIRST_MESSENGER(Hardships.Kind.PULLS),
    /** What is offered is free when the first of the engine's messengers has released its part. */
    OFFER_FREED_WITH_FIRST_MESSENGER(Hardships.Kind.PULLS),
    /** Messengers of an engine are not known as one: an offer is for that which has asked. */
    OFFERED_TO_ONE_MESSENGER(Hardships.Kind.PULLS),
    /** A decoder that is asked to leave does so whatever is under way. */
    LEAVES_WHEN_BUSY(Weather.QUIET, Hardships.Kind.IDLE),
    /** A decoder that has left does not dial again. */
    DIALS_ONCE(Weather.QUIET, Hardships.Kind.IDLE),
    /** Of pages that ranks divide, what a source has posted counts as arrived. */
    SHARE_COUNTED_WHEN_POSTED(Hardships.Kind.DIVIDED),
    /** Which pages a source has is not heard, and what it has sent never complete. */
    SHARES_NOT_HEARD(Weather.QUIET, Hardships.Kind.DIVIDED);

    /** The kind of run that can expose it. */
    final Weather weather;
    /** What such a run has besides. */
    final Hardships.Kind beside;

    Mutation() {
        this(Weather.FAULTY);
    }

    Mutation(Weather weather) {
        this(weather, Hardships.Kind.NONE);
    }

    Mutation(Hardships.Kind beside) {
        this(Weather.FAULTY, beside);
    }

    Mutation(Weather weather, Hardships.Kind beside) {
        this.weather = weather;
        this.beside = beside;
    }

    /** Whether it changes frames in flight, which a seal would detect. */
    boolean changesFrames() {
        return switch (this) {
            case DIGEST_IGNORED, ID_SERVED_ONCE, REJECTION_ENDS_TRANSFER, REJECTION_LOST, EXPECTATION_LOST -> true;
            case REQUESTED_ROW_LEFT_OUT, UNREQUESTED_ROW_SENT -> true;
            case COMPARISON_LEFT_OUT, COMPARISON_LEFT_OUT_AGAIN, CHECKSUM_OF_ANOTHER -> true;
            case LEAVES_WHEN_BUSY, SHARES_NOT_HEARD -> true;
            default -> false;
        };
    }

    EngineLimits limits(EngineLimits limits) {
        boolean immsRepeatAtOnce = this == GENERATION_IGNORED || this == ANSWERED_BY_IMMEDIATE;
        return !immsRepeatAtOnce
                ? limits
                : new EngineLimits(limits.requestsPerPeer(), limits.slots(), 1, limits.completions(), limits.peers());
    }

    ProtocolLimits limits(ProtocolLimits limits) {
        if (this != HEARTBEAT_IGNORED) {
            return limits;
        }
        return new ProtocolLimits(
                limits.grantWaitNs(),
                limits.fetchLimitNs(),
                limits.connectLimitNs(),
                limits.heartbeatNs(),
                Long.MAX_VALUE / 4,
                limits.unheardLimitNs(),
                limits.unheardAskedNs(),
                limits.offerLimitNs(),
                limits.capacities());
    }
}
