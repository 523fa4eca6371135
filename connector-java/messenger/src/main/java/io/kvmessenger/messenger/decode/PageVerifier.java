package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.pages.PageSum;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.ContextRow;
import io.kvmessenger.messenger.port.MessengerMetric;
import io.kvmessenger.messenger.port.RankMemory;
import io.kvmessenger.messenger.port.Tally;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.WindowArea;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;

/**
 * Compares the pages that have arrived for a fetch with the checksums that its prefillers sent.
 *
 * <p>Owned by the messenger's thread. Pages are read only after their window is filled and closed, when nothing changes
 * them any more. It ends no fetch: damaged ones are reported to {@link Decoder}.
 */
final class PageVerifier {
    private final int interval;
    private final Map<Integer, Region> regions = new HashMap<>();
    private final Tally tally;
    private final BiConsumer<Fetch, String> damaged;
    /** Bytes that may still be read in this duty cycle, over all fetches: timers and heartbeats wait meanwhile. */
    private long leftBytes;

    /**
     * @param memory of each rank of the geometry
     * @param damaged is called with a fetch whose pages differ from the prefiller's, and a sentence saying so; it fails
     *     the fetch
     */
    PageVerifier(
            ChecksumMode mode,
            List<RankMemory> memory,
            List<ContextRow> context,
            Tally tally,
            BiConsumer<Fetch, String> damaged) {
        this.interval = mode.interval();
        this.tally = tally;
        this.damaged = damaged;
        memory.forEach(rank -> rank.regions().forEach(this::add));
        context.forEach(row -> add(row.region()));
    }

    private void add(Region region) {
        regions.put(region.descriptor().regionId(), region);
    }

    /** Keeps a prefiller's checksums. Returns what is wrong with them as the end of a sentence; empty when valid. */
    String add(FetchSource source, Checksums message) {
        for (Checksums.Write write : message.getWritesList()) {
            if (write.getPartCount() < 1
                    || write.getWeight() < 1
                    || write.getFirstSummed() < 0
                    || write.getFirstSummed() >= interval
                    || write.getGroup() < 0
                    || write.getGroup() >= source.fetch.ask.pages().size()
                    || source.grant.checksummedWeight + write.getWeight() > source.grant.expectedWeight
                    || !granted(source.fetch, write)) {
                return "checksums of pages that it was not granted";
            }
            source.grant.checksummedWeight += write.getWeight();
            source.grant.checksums.add(write);
        }
        return "";
    }

    private boolean granted(Fetch fetch, Checksums.Write write) {
        WindowArea area = fetch.area;
        int part = area.partIndexOf(write.getRegionId());
        if (part < 0 || write.getPartBytes() < 1 || write.getPartsPerPage() < 1) {
            return false;
        }
        PageList pages;
        try {
            pages = pages(fetch, write);
        } catch (IndexOutOfBoundsException e) {
            return false;
        }
        for (int i = 0; i < pages.count(); i++) {
            if (!area.parts().get(part).ranges().contains(pages.offsetOf(i), write.getPartBytes())) {
                return false;
            }
        }
        return true;
    }

    private static PageList pages(Fetch fetch, Checksums.Write write) {
        return new PageList(
                write.getContext()
                        ? new int[] {fetch.ask.contextSlot()}
                        : fetch.ask.pages().get(write.getGroup()),
                write.getFromPart(),
                write.getPartCount(),
                write.getStrideBytes(),
                write.getOffsetBytes(),
                write.getPartsPerPage(),
                write.getPartStrideBytes());
    }

    /** Whether all pages to be compared have been, and are equal. */
    boolean verified(Fetch fetch) {
        return fetch.sources.stream().allMatch(source -> verified(source.grant));
    }

    private boolean verified(SourceGrant grant) {
        return hasChecksums(grant) && grant.comparedCount == grant.checksums.count();
    }

    /** Whether the prefiller has sent checksums for everything it wrote, or none were requested. */
    boolean hasChecksums(SourceGrant grant) {
        return interval == 0 || grant.checksummedWeight == grant.owedWeight();
    }

    /** Begins a duty cycle, with a new budget of bytes. */
    void beginCycle() {
        leftBytes = PageSum.BYTES_PER_CYCLE;
    }

    /** Compares further pages of a fetch whose sources are all filled. Returns the bytes read. */
    long advance(Fetch fetch) {
        long bytes = 0;
        for (FetchSource source : fetch.sources) {
            while (source.grant.comparedCount < source.grant.checksums.count() && leftBytes > 0 && !fetch.failing()) {
                long taken = advance(source, leftBytes);
                leftBytes -= taken;
                bytes += taken;
            }
        }
        return bytes;
    }

    private long advance(FetchSource source, long bytesMax) {
        SourceGrant grant = source.grant;
        Checksums.Write write = grant.checksums.get(grant.comparedCount);
        if (grant.sum == null) {
            grant.sum = new PageSum(
                    regions.get(write.getRegionId()),
                    pages(source.fetch, write),
                    write.getPartBytes(),
                    write.getFirstSummed(),
                    interval);
        }
        long bytes = grant.sum.advance(bytesMax);
        if (grant.sum.done()) {
            tally.add(MessengerMetric.PAGES_COMPARED, grant.sum.pageCount());
            if (grant.sum.pageCount() > 0 && grant.sum.value() != write.getCrc32C()) {
                tally.add(MessengerMetric.CHECKSUMS_DIFFERENT, 1);
                damaged.accept(source.fetch, difference(source, write));
            }
            grant.comparedCount++;
            grant.sum = null;
        }
        return bytes;
    }

    private static String difference(FetchSource source, Checksums.Write write) {
        return "the KV of transfer " + source.fetch.ask.transferId() + " arrived damaged: its page checksum is "
                + Integer.toHexString(source.grant.sum.value()) + ", and "
                + Integer.toHexString(write.getCrc32C()) + " at " + source.session.peerName() + " ("
                + write.getPartCount() + " parts from part " + write.getFromPart() + " at byte "
                + write.getOffsetBytes() + " of region " + write.getRegionId()
                + "); check the network and the memory of both hosts";
    }
}
