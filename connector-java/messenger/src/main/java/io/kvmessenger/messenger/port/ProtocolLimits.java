package io.kvmessenger.messenger.port;

/**
 * Upper bounds of the protocol's waits. Every wait is bounded by one of these.
 *
 * @param grantWaitNs a finished prefill waits for its grant, and a grant for a prefill that is known to be on its way
 * @param fetchLimitNs a fetch that has not arrived by then fails
 * @param connectLimitNs from dialling to the end of the handshake
 * @param heartbeatNs interval between two heartbeats
 * @param silenceLimitNs a peer that has stopped is declared lost before this time is over; see {@link #lostAfterNs}
 * @param unheardLimitNs a grant waits for a prompt of which the prefiller has heard nothing at all
 * @param unheardAskedNs the same for grants that this side sends as a decoder, where the prefiller's is less; 0 = the
 *     prefiller's
 * @param offerLimitNs a cached prefix that was offered waits for its grant, and a peer's question for the engine's answer
 * @param capacities what is kept meanwhile
 */
public record ProtocolLimits(
        long grantWaitNs,
        long fetchLimitNs,
        long connectLimitNs,
        long heartbeatNs,
        long silenceLimitNs,
        long unheardLimitNs,
        long unheardAskedNs,
        long offerLimitNs,
        Capacities capacities) {
    /** The newest version that is spoken. A change of the protocol that affects peers increments it. */
    public static final int PROTOCOL_VERSION = 12;
    /**
     * The oldest version that is spoken: the previous one, so that the sides can be updated separately;
     * docs/compatibility.md.
     */
    public static final int PROTOCOL_VERSION_OLDEST = 10;
    /** Longest control frame: a grant of a million-token prompt with its token ids fits. */
    public static final int FRAME_LENGTH_MAX_BYTES = 8 << 20;
    /** Longest frame of an unproven peer: the geometry of 16 ranks with 256 layers fits. */
    public static final int HANDSHAKE_FRAME_LENGTH_MAX_BYTES = 512 << 10;
    /** Incoming links whose handshake is incomplete; one more, and the host with the most loses its oldest. */
    public static final int HANDSHAKES_MAX = 64;
    /** Decoders attached to one prefiller; one more waits for a place. */
    public static final int DECODERS_MAX = 512;
    /** Decoders that stay attached with nothing under way, unless set otherwise: places are free before one must wait. */
    public static final int DECODERS_KEPT = 448;
    /** Ended transfers remembered, so that the answer to a late message can say how its transfer ended. */
    public static final int ENDED_TRANSFERS_MAX = 4096;
    /** Transfers that the session of one decoder may expect. */
    public static final int EXPECTED_TRANSFERS_MAX = 65_536;
    /** Largest interval of a grant that asks for checksums: at least one page in this many. */
    public static final int CHECKSUM_INTERVAL_MAX = 1 << 16;
    /** Heap bytes that the page lists of one decoder's waiting grants may take: two of a million-token prompt fit. */
    public static final long GRANT_BYTES_WAITING_MAX = 4 << 20;
    /** Heap bytes that the page lists of all decoders' waiting grants may take. */
    public static final long GRANT_BYTES_WAITING_ALL_MAX = 32 << 20;
    /** Grants that wait for their prefill, over all decoders. */
    public static final int GRANTS_WAITING_MAX = 16_384;
    /** How long a finished prefill waits after its decode leg was rejected: a router retries within this time. */
    public static final long REJECTED_WAIT_MAX_NS = 5_000_000_000L;

    private static final long OFFER_LIMIT_NS = 5_000_000_000L;

    /** Questions to other engines, and of other engines, that are not answered yet. */
    public static final int ASKS_OPEN_MAX = 64;

    /**
     * Tokens of the questions that this engine has asked and that are not answered yet. Those to one engine may wait for
     * its session and leave at once, as up to four bytes a token: half of what may wait for a link.
     */
    public static final int ASKED_TOKENS_MAX = 1 << 22;

    /** How long two legs of one transfer id may name different prompts: more of either may be on their way. */
    public static final long CONTRADICTION_WAIT_MAX_NS = 5_000_000_000L;

    /**
     * How long after the end of its data paths a session waits for the peer's reason at most. The peer has sent it before
     * it closed the paths, so that only a busy host delays it.
     */
    public static final long LAST_WORD_WAIT_MAX_NS = 2_000_000_000L;

    /** The longest that a decoder can have its grants wait for prompts of which nothing has been heard. */
    public static final long UNHEARD_LIMIT_MAX_NS = 86_400_000_000_000L;

    /** Limits of production, by which a prompt that is unheard of is waited for as long as any other. */
    public ProtocolLimits(
            long grantWaitNs, long fetchLimitNs, long connectLimitNs, long heartbeatNs, long silenceLimitNs) {
        this(grantWaitNs, fetchLimitNs, connectLimitNs, heartbeatNs, silenceLimitNs, grantWaitNs, 0);
    }

    /** The same waits with the capacities of production. */
    public ProtocolLimits(
            long grantWaitNs,
            long fetchLimitNs,
            long connectLimitNs,
            long heartbeatNs,
            long silenceLimitNs,
            long unheardLimitNs,
            long unheardAskedNs) {
        this(
                grantWaitNs,
                fetchLimitNs,
                connectLimitNs,
                heartbeatNs,
                silenceLimitNs,
                unheardLimitNs,
                unheardAskedNs,
                Math.min(grantWaitNs / 4, OFFER_LIMIT_NS),
                Capacities.PRODUCTION);
    }

    public ProtocolLimits with(Capacities other) {
        return new ProtocolLimits(
                grantWaitNs,
                fetchLimitNs,
                connectLimitNs,
                heartbeatNs,
                silenceLimitNs,
                unheardLimitNs,
                unheardAskedNs,
                offerLimitNs,
                other);
    }

    public ProtocolLimits withOfferLimitNs(long limitNs) {
        return new ProtocolLimits(
                grantWaitNs,
                fetchLimitNs,
                connectLimitNs,
                heartbeatNs,
                silenceLimitNs,
                unheardLimitNs,
                unheardAskedNs,
                limitNs,
                capacities);
    }

    /** How long a grant waits while the engine has announced another prompt under its id and nothing else has come. */
    public long contradictionWaitNs() {
        return Math.min(Math.min(grantWaitNs, unheardLimitNs), CONTRADICTION_WAIT_MAX_NS);
    }

    /** How long a peer waits for a place before it is refused: both sides' limit of the handshake is not over then. */
    public long placeWaitNs() {
        return connectLimitNs / 2;
    }

    /** How long a finished prefill waits for its grant after a decoder has rejected the request. */
    public long rejectedWaitNs() {
        return Math.min(grantWaitNs / 4, REJECTED_WAIT_MAX_NS);
    }

    /** How long after the end of its data paths a session waits for the peer's reason. */
    public long lastWordWaitNs() {
        return Math.min(silenceLimitNs / 5, LAST_WORD_WAIT_MAX_NS);
    }

    /** How long a peer may delay the writes of a preempted prompt: the whole engine waits for them. */
    public long fenceLimitNs() {
        return silenceLimitNs / 5;
    }

    /**
     * How long after the end of a session its sources may still turn out to be all here: until the peer has been silent
     * for the limit, and at least a fifth of it, as what has reached this host is counted soon.
     */
    public long verdictLimitNs(long silentNs) {
        return Math.max(silenceLimitNs - silentNs, silenceLimitNs / 5);
    }

    /**
     * Silence after which a peer is declared lost: half a heartbeat less than the limit, which leaves the engine time
     * to end the requests before the limit is over.
     */
    public long lostAfterNs() {
        return silenceLimitNs - heartbeatNs / 2;
    }
}
