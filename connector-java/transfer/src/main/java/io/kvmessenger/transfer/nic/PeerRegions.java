package io.kvmessenger.transfer.nic;

import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Predicate;

/**
 * The regions of a peer as its NIC names them, requested from the peer when a path first writes to each.
 *
 * <p>Worker only. One request at a time: nothing is posted until the peer has answered. Allocates only for a request.
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

    /** The peer's data on a region; null while its answer is pending, or the request could not be sent yet. */
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
     * Why a batch's pages from {@code page} on cannot be one write to a region; null if they can.
     *
     * @param lengthBytes of the write
     * @param writeMaxBytes longest write of the NIC
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

    /** Whether an answer of the peer is pending. */
    public boolean isWaiting() {
        return waiting;
    }

    /** Whether this answers the pending request. */
    public boolean isAnswer(RemoteMemory region) {
        return waiting && region != null && region.regionId() == wantedId;
    }

    /** Takes an answer accepted by {@link #isAnswer}; false if the peer has no such region. */
    public boolean take(RemoteMemory region) {
        waiting = false;
        if (region.lengthBytes() == RemoteMemory.UNKNOWN) {
            return false;
        }
        known.put(region.regionId(), region);
        return true;
    }
}
