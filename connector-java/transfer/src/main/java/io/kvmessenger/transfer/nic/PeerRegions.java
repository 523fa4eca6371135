package io.kvmessenger.transfer.nic;

import io.kvmessenger.transfer.path.WantedRegion;
import io.kvmessenger.transfer.spi.WriteBatch;
import java.lang.foreign.MemorySegment;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Predicate;

/**
 * The regions of a peer as its NIC names them, requested from the peer when a path first writes to each.
 *
 * <p>Worker only. Allocates only for a request.
 */
public final class PeerRegions {
    private final WantedRegion wanted;
    private final Map<Integer, RemoteMemory> known = new HashMap<>();
    private RemoteMemory last;

    /** @param ask sends the peer a {@link RemoteMemory} that names a region, if there is room for it now */
    public PeerRegions(Predicate<MemorySegment> ask) {
        wanted = new WantedRegion(
                regionId -> ask.test(RemoteMemory.unknown(regionId).encode()));
    }

    /** The peer's data on a region; null while its answer is pending, or the request could not be sent yet. */
    public RemoteMemory find(int regionId) {
        if (last != null && last.regionId() == regionId) {
            return last;
        }
        RemoteMemory found = known.get(regionId);
        if (found == null) {
            wanted.want(regionId);
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
        return wanted.isWaiting();
    }

    /**
     * Takes an answer, null if malformed; false if the peer has no such region.
     *
     * @throws IllegalArgumentException when it is not the answer that is pending
     */
    public boolean take(RemoteMemory region) {
        wanted.onAnswer(region == null ? WantedRegion.NONE : region.regionId());
        if (region.lengthBytes() == RemoteMemory.UNKNOWN) {
            return false;
        }
        known.put(region.regionId(), region);
        return true;
    }
}
