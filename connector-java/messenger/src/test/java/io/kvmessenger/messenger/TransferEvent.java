package io.kvmessenger.messenger;

import java.util.List;

/** What may happen to one transfer, on either of its legs or to both. The table in docs/protocol.md has the same rows. */
enum TransferEvent {
    ANNOUNCED(Leg.PREFILL, "the prefiller's engine announces the prompt"),
    BEGUN(Leg.PREFILL, "a forward pass with its first chunk begins"),
    ENDED(Leg.PREFILL, "the engine has finished it"),
    ABORTED(Leg.PREFILL, "the engine aborts it during its pass"),
    PREEMPTED(Leg.PREFILL, "the engine preempts it during its pass, and computes it again"),
    PREFILL_EXPIRED(Leg.PREFILL, "`grant_wait_seconds` pass after its end"),
    EXPECTED(Leg.DECODE, "the decoder's engine has queued the request"),
    GRANTED(Leg.DECODE, "it fetches"),
    DECLINED(Leg.DECODE, "it will not fetch"),
    CANCELLED(Leg.DECODE, "it abandons its fetch"),
    UNHEARD(Leg.DECODE, "`unheard_limit_seconds` pass after the grant"),
    FETCH_EXPIRED(Leg.DECODE, "`fetch_limit_seconds` pass after the grant"),
    REJECTED(Leg.FRONT, "the decoder's API server rejects a request of that id"),
    LINK_LOST(Leg.BOTH, "the session ends, and a later fetch dials again"),
    WEIGHTS_CHANGED(Leg.BOTH, "weights change at the prefiller alone: prompts that come now have another digest");

    /** Events of one of these come in a fixed order; those of different ones may come in either. */
    enum Leg {
        PREFILL,
        DECODE,
        /** The server in front of the decoder's engine. */
        FRONT,
        BOTH
    }

    final Leg leg;
    final String meaning;

    TransferEvent(Leg leg, String meaning) {
        this.leg = leg;
        this.meaning = meaning;
    }

    /** What has to have happened on its leg before. */
    List<TransferEvent> before() {
        return switch (this) {
            case ANNOUNCED, EXPECTED, GRANTED, DECLINED, REJECTED, LINK_LOST, WEIGHTS_CHANGED -> List.of();
            case BEGUN -> List.of(ANNOUNCED);
            case ENDED, ABORTED, PREEMPTED -> List.of(ANNOUNCED, BEGUN);
            case PREFILL_EXPIRED -> List.of(ANNOUNCED, BEGUN, ENDED);
            case CANCELLED, UNHEARD, FETCH_EXPIRED -> List.of(GRANTED);
        };
    }

    /** What happens on its leg afterwards. */
    List<TransferEvent> after() {
        return switch (this) {
            case ANNOUNCED -> List.of(BEGUN, ENDED);
            case BEGUN -> List.of(ENDED);
            case PREEMPTED -> List.of(BEGUN, ENDED);
            case EXPECTED -> List.of(GRANTED);
            default -> List.of();
        };
    }

    /** The other leg of a pair that lacks one goes on like this. */
    static List<TransferEvent> whole(Leg leg) {
        return leg == Leg.PREFILL ? List.of(ANNOUNCED, BEGUN, ENDED) : List.of(GRANTED);
    }

    /** Whether neither event is a consequence of the other, so that either may come first. */
    boolean orderIsFreeWith(TransferEvent other) {
        return leg != other.leg || leg == Leg.BOTH;
    }
}
