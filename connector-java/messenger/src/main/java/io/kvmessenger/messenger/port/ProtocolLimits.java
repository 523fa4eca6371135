package io.kvmessenger.messenger.port;

/**
 * How long each wait may last. Every wait of the protocol is bounded by one of these.
 *
 * @param grantWaitNs a finished prefill waits for its grant, and a grant for its prefill
 * @param fetchLimitNs a fetch ends, failed, if it has not been filled by then
 * @param connectLimitNs from dialling to the end of the handshake
 * @param heartbeatNs between two heartbeats
 * @param silenceLimitNs a peer that has stopped is declared lost before this time is over; see {@link #lostAfterNs}
 */
public record ProtocolLimits(
        long grantWaitNs, long fetchLimitNs, long connectLimitNs, long heartbeatNs, long silenceLimitNs) {
    /** The newest version that is spoken. A change of the protocol that a peer must know of makes it one more. */
    public static final int PROTOCOL_VERSION = 10;
    /** The oldest one: the version before, so that one side can be updated after the other; docs/compatibility.md. */
    public static final int PROTOCOL_VERSION_OLDEST = 10;
    /** Longest control frame: a grant of a million-token prompt with its token ids fits. */
    public static final int FRAME_LENGTH_MAX_BYTES = 8 << 20;
    /** Longest frame of a peer that has not proven itself: the geometry of 16 ranks with 256 layers fits. */
    public static final int HANDSHAKE_FRAME_LENGTH_MAX_BYTES = 512 << 10;
    /** Links that have been opened here and have not completed their handshake; one more, and the oldest is closed. */
    public static final int HANDSHAKES_MAX = 64;
    /** Decoders attached to one prefiller. */
    public static final int DECODERS_MAX = 512;
    /** Ended transfers remembered, so that a late message gets a precise answer. */
    public static final int ENDED_TRANSFERS_MAX = 4096;
    /** Transfers that one decoder's session may expect. */
    public static final int EXPECTED_TRANSFERS_MAX = 65_536;
    /** A grant that asks for checksums asks for at least one page in so many. */
    public static final int CHECKSUM_INTERVAL_MAX = 1 << 16;
    /** What the page lists of one decoder's waiting grants may take of the heap: two of a million-token prompt fit. */
    public static final long GRANT_BYTES_WAITING_MAX = 4 << 20;
    /** The same over all decoders. */
    public static final long GRANT_BYTES_WAITING_ALL_MAX = 32 << 20;
    /** Grants that wait for their prefill, over all decoders. */
    public static final int GRANTS_WAITING_MAX = 16_384;
    /** How long a finished prefill waits whose decode leg was rejected: a router that tries again does so within this. */
    public static final long REJECTED_WAIT_MAX_NS = 5_000_000_000L;

    /** How long two legs of one transfer id may name different prompts: more of either may be under way. */
    public static final long CONTRADICTION_WAIT_MAX_NS = 5_000_000_000L;

    /** How long a grant waits while the engine has announced another prompt under its id, and nothing else has come. */
    public long contradictionWaitNs() {
        return Math.min(grantWaitNs, CONTRADICTION_WAIT_MAX_NS);
    }

    /** How long a finished prefill waits for its grant when a decoder has rejected the request. */
    public long rejectedWaitNs() {
        return Math.min(grantWaitNs / 4, REJECTED_WAIT_MAX_NS);
    }

    /** How long a peer may hold writes of a preempted prompt: the whole engine waits for them. */
    public long fenceLimitNs() {
        return silenceLimitNs / 5;
    }

    /**
     * Silence after which a peer is declared lost: half a heartbeat less than the limit, which leaves the engine time to
     * end the requests before the limit is over.
     */
    public long lostAfterNs() {
        return silenceLimitNs - heartbeatNs / 2;
    }
}
