package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.TransferOptions;

/**
 * The size limits of one engine. A value; only simulations use others than {@link #of}.
 *
 * @param requestsPerPeer writes queued for or in flight to one peer; a power of two
 * @param slots counters, and so windows, open at once
 * @param generations uses of a slot before its immediate repeats
 * @param completions half the number of events that can wait to be polled; a power of two
 * @param peers peers, and as many admissions, alive at once
 */
public record EngineLimits(int requestsPerPeer, int slots, int generations, int completions, int peers) {
    private static final int COMPLETIONS_MAX = 1 << 16;
    private static final int PEERS_MAX = 1 << 10;

    public EngineLimits {
        require(Integer.bitCount(requestsPerPeer) == 1, "requestsPerPeer", requestsPerPeer, "a power of two");
        require(
                slots >= 2 && slots <= Imm.SLOT_COUNT_MAX,
                "slots",
                slots,
                "2 to " + Imm.SLOT_COUNT_MAX + ", of which the first is never given out");
        require(
                generations >= 1 && generations <= Imm.GENERATION_COUNT,
                "generations",
                generations,
                "1 to " + Imm.GENERATION_COUNT);
        require(Integer.bitCount(completions) == 1, "completions", completions, "a power of two");
        require(peers >= 1, "peers", peers, "at least 1");
    }

    /** The limits given by the immediate's layout and by the options. */
    static EngineLimits of(TransferOptions options) {
        return new EngineLimits(
                options.get(TransferOptions.REQUESTS_PER_PEER_MAX),
                Imm.SLOT_COUNT_MAX,
                Imm.GENERATION_COUNT,
                COMPLETIONS_MAX,
                PEERS_MAX);
    }

    private static void require(boolean holds, String limit, int seen, String expected) {
        if (!holds) {
            throw new IllegalArgumentException("limit " + limit + " is " + seen + ", expected " + expected);
        }
    }
}
