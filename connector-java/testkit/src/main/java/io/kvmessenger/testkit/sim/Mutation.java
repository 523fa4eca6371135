package io.kvmessenger.testkit.sim;

import io.kvmessenger.messenger.port.ProtocolLimits;
import io.kvmessenger.testkit.sim.Scenario.Weather;
import io.kvmessenger.transfer.engine.EngineLimits;

/** A bug put in on purpose, to show that the checkers see it. Made at the ports: production code knows nothing of it. */
public enum Mutation {
    NONE,
    /** The decoder's pages go back when the cancel is sent, not when it is confirmed. */
    FREE_ON_CANCEL,
    /** The decoder expects one page less than will come. */
    EXPECTATION_OFF_BY_ONE,
    /**
     * A slot is used again under the same generation, where only the generation guards: at a target that looks at writes,
     * by a decoder that does not wait until all that was posted has been counted.
     */
    GENERATION_IGNORED,
    /** A layer is taken as readable while it is being computed. */
    COUNTER_READ_EARLY,
    /** A layer is taken as readable when the first rank has it, and the others do not. */
    COUNTER_LAG_LOST,
    /** A pass is taken as over when it is queued to its end. */
    STEP_OVER_WHEN_TOLD,
    /** A step that begins while another is in flight is counted from where that one began. */
    STEP_BASE_FORGOTTEN,
    /** A device does not count the end of a pass: with all hooked layers counted it is taken as over. */
    PASS_END_NOT_COUNTED,
    /** A pass that the messenger is not told of is left out of where the next one begins. */
    UNTOLD_PASS_NOT_COUNTED,
    /** A page that the engine's prefix cache knows is taken as written. */
    COMMITTED_TAKEN_AS_WRITTEN,
    /** A pass that is told when it is over is told when it begins. */
    COMPUTED_TOLD_EARLY,
    /** A group's pages are told in the place of another's. */
    GROUPS_MIXED,
    /** Silence is never acted on. */
    HEARTBEAT_IGNORED,
    /** A grant that was served is served again. */
    DUPLICATE_GRANT_ACCEPTED,
    /** An answer to a grant is taken for one to a later grant whose immediate is the same. */
    ANSWERED_BY_IMMEDIATE,
    /** Some writes arrive with a bit flipped. */
    PAYLOAD_DAMAGED,
    /** A counter shows what was posted for its window, also what has not landed yet. */
    COUNTED_WHEN_POSTED,
    /** What has landed in host memory is counted before a device has copied it on. */
    COUNTED_BEFORE_COPIED,
    /** A window that is closed does not wait for what a device still copies into its pages. */
    FREED_BEFORE_COPIED,
    /** What a device gathers is sent when its copies are queued. */
    SENT_BEFORE_GATHERED,
    /** While a device copies, the worker does not look whether it is done. */
    COPIES_NOT_LOOKED_AT(Weather.SOUND),
    /** Each copy waits for the one before as for a message: what a device gathers is late, and all of it is there in the end. */
    COPIES_AS_SLOW_AS_HOPS(Weather.SOUND),
    /** A stream that is closed does not wait for copies that have begun. */
    COPIES_OUTLIVE_STREAM,
    /** A fetch is reported arrived when the first of its sources has sent all. */
    ONE_SOURCE_SUFFICES,
    /** The completion of one request is told for another that is under way. */
    ANOTHER_COMPLETED,
    /** A window and its pages are free when their peer's admission is revoked, while the peer can still write. */
    FREED_WITHOUT_PROOF,
    /** Writes are not held to what is allowed, and one more is submitted when that has ended. */
    ALLOWANCE_UNCHECKED,
    /** A prefiller looks for the prompt of a grant by its id alone. */
    DIGEST_IGNORED,
    /** A prefiller serves an id once: a grant for another prompt under it is not answered. */
    ID_SERVED_ONCE,
    /** That a request was rejected ends the transfer, as if its decoder had declined it. */
    REJECTION_ENDS_TRANSFER,
    /** A prefiller does not hear that a request was rejected. */
    REJECTION_LOST(Weather.SOUND),
    /** A prefiller does not hear that its decoder has queued a request. */
    EXPECTATION_LOST,
    /** A messenger does not hear that its prefiller has queued a request. */
    ANNOUNCEMENT_LOST,
    /** A fetch is reported arrived when its KV is there, and its context rows may not be. */
    CONTEXT_NOT_EXPECTED,
    /** Of each kind of context row that of the first slot leaves, whichever request's it is. */
    CONTEXT_OF_ANOTHER,
    /** A decoder asks for no rows and waits for none, whatever its engine asks for. */
    REQUESTED_ROW_FORGOTTEN,
    /** A prefiller leaves out rows that it is asked for. */
    REQUESTED_ROW_LEFT_OUT,
    /** A prefiller sends rows that it is not asked for. */
    UNREQUESTED_ROW_SENT,
    /** What a broken lane had is posted again, also what its target took. */
    REPEATED_THOUGH_TAKEN(Weather.QUIET),
    /** What a broken lane had is not posted again. */
    LOST_AND_NOT_REPEATED(Weather.QUIET),
    /** What a lane has read is taken as sent, and not posted again when the lane breaks. */
    SENT_WHEN_READ(Weather.QUIET),
    /** What a lane had is posted again before its target has said that nothing more of it lands. */
    REPEATED_UNPROVEN,
    /** What the last lane of a domain had is not posted to the next domain. */
    FALL_FORGETS(Weather.QUIET),
    /** A path is not given up, however long nothing is heard of what it has. */
    SILENCE_BORNE(Weather.QUIET),
    /** An engine that waits for grants does not hear of them. */
    GRANT_NOT_TOLD;

    /** What a run must be like to show it. */
    final Weather weather;

    Mutation() {
        this(Weather.FAULTY);
    }

    Mutation(Weather weather) {
        this.weather = weather;
    }

    /** Whether it changes frames on their way, which a seal would not let pass. */
    boolean changesFrames() {
        return switch (this) {
            case DIGEST_IGNORED, ID_SERVED_ONCE, REJECTION_ENDS_TRANSFER, REJECTION_LOST, EXPECTATION_LOST -> true;
            case REQUESTED_ROW_LEFT_OUT, UNREQUESTED_ROW_SENT -> true;
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
                Long.MAX_VALUE / 4);
    }
}
