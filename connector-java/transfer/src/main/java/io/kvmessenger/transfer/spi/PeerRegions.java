package io.kvmessenger.transfer.spi;

import java.lang.foreign.MemorySegment;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Predicate;

/**
 * The regions of a peer as its NIC names them, each asked for when a path first writes there.
 *
 * <p>Worker only. Looks for one at a time: nothing is posted while the peer has not answered. Allocates only when it asks.
 */
public final class PeerRegions {
    private final Predicate<MemorySegment> ask;
    private final Map<Integer, RemoteMemory> known = new HashMap<>();
    private RemoteMemory last;
    private int wantedId;
    private boolean waiting;

    /** @param ask sends the peer a {@link RemoteMemory} that names a region, if there is room for it now */
    public PeerRegions(Predicate<MemorySegment> ask) {
        this.ask = ask;
    }

    /** What the peer says of a region; null where it has been asked, or could not be yet. */
    public RemoteMemory find(int regionId) {
        if (last != null && last.regionId() == regionId) {
            return last;
        }
        RemoteMemory found = known.get(regionId);
        if (found == null) {
            wantedId = regionId;
            waiting = ask.test(RemoteMemory.unknown(regionId).encode());
        } else {
            last = found;
        }
        return found;
    }

    /**
     * Why what the batch has from a page on cannot be one write to a region; null where it can.
     *
     * @param lengthBytes of the write
     * @param writeMaxBytes what the NIC writes at once
     */
    public static String refusal(
            WriteBatch batch, int page, long lengthBytes, RemoteMemory region, long writeMaxBytes) {
        if (lengthBytes > writeMaxBytes) {
            return "a page of " + lengthBytes + " bytes is longer than one write may be, " + writeMaxBytes;
        }
        long to = batch.targetOffsetBytes(page);
        return to < 0 || to > region.lengthBytes() - lengthBytes
                ? "the peer's region " + batch.regionId() + " is shorter than it said"
                : null;
    }

    /** Whether the peer has not answered yet. */
    public boolean isWaiting() {
        return waiting;
    }

    /** Whether the peer was asked for this. */
    public boolean isAnswer(RemoteMemory region) {
        return waiting && region != null && region.regionId() == wantedId;
    }

    /** Takes what {@link #isAnswer}; false where the peer has no such region. */
    public boolean take(RemoteMemory region) {
        waiting = false;
        if (region.lengthBytes() == RemoteMemory.UNKNOWN) {
            return false;
        }
        known.put(region.regionId(), region);
        return true;
    }
}
