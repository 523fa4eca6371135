package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.wire.Checksums;
import io.kvmessenger.messenger.wire.ControlFrame;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Where pages are compared, all that a decoder hands to its engine were: the checksums that it received for the grants
 * of an arrived fetch name each byte that was counted for them, and it has compared as many pages as these checksums
 * cover in its mode. What it compared for fetches that then failed may hide pages that it left out of others.
 *
 * <p>It reads from {@link CountChecker} what has been counted, and has to be asked before that.
 */
final class ComparedChecker implements WorldListener {
    private record GrantKey(String process, long grantId) {}

    private final CountChecker counts;
    private final ChecksumMode mode;
    private final Map<GrantKey, List<Checksums.Write>> received = new HashMap<>();
    /** By process and request: the last grant to each prefiller's process. */
    private final Map<String, Map<String, Long>> granted = new HashMap<>();

    private final Map<String, FetchFacts> fetches = new HashMap<>();
    /** By process: ids of its regions, in the order of ranks and then of kinds of context rows. */
    private final Map<String, List<Integer>> regions = new HashMap<>();
    /** By process: pages compared so far, and pages that arrived fetches account for. */
    private final Map<String, Long> compared = new HashMap<>();

    private final Map<String, Long> due = new HashMap<>();

    ComparedChecker(CountChecker counts, ChecksumMode mode) {
        this.counts = counts;
        this.mode = mode;
    }

    @Override
    public void processStarted(String process, KvGeometry geometry, List<MemorySegment> memories) {
        compared.put(process, 0L);
        due.put(process, 0L);
    }

    @Override
    public void regionsRegistered(String process, List<Integer> regionIds) {
        regions.put(process, regionIds);
    }

    @Override
    public void pagesCompared(String process, long count) {
        compared.merge(process, count, Long::sum);
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        String key = fetch.process() + " " + fetch.request();
        fetches.put(key, fetch);
        granted.put(key, new HashMap<>());
    }

    @Override
    public void frameSent(String from, String to, ControlFrame frame) {
        if (frame.hasGrant()) {
            String request = counts.grantedBy(from, frame.getGrant()).request();
            granted.get(from + " " + request).put(to, frame.getGrant().getGrantId());
        }
    }

    @Override
    public void frameDelivered(String from, String to, ControlFrame frame) {
        if (frame.hasChecksums()) {
            Checksums checksums = frame.getChecksums();
            received.computeIfAbsent(new GrantKey(to, checksums.getGrantId()), key -> new ArrayList<>())
                    .addAll(checksums.getWritesList());
        }
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        String key = process + " " + request;
        FetchFacts fetch = fetches.remove(key);
        Map<String, Long> grants = granted.remove(key);
        if (mode == ChecksumMode.OFF) {
            return;
        }
        grants.forEach((writer, grantId) -> check(fetch, writer, received.remove(new GrantKey(process, grantId))));
        if (compared.get(process) < due.get(process)) {
            throw new Violation(
                    "Compared",
                    request + " was reported arrived, and " + process + " has compared " + compared.get(process)
                            + " pages where the checksums of what has arrived cover " + due.get(process));
        }
    }

    private void check(FetchFacts fetch, String writer, List<Checksums.Write> writes) {
        List<Checksums.Write> known = writes == null ? List.of() : writes;
        List<BitSet> arrived = counts.countedFrom(fetch.process(), fetch.request(), writer);
        for (int place = 0; place < arrived.size(); place++) {
            BitSet missing = (BitSet) arrived.get(place).clone();
            missing.andNot(covered(fetch, known, regions.get(fetch.process()).get(place)));
            if (!missing.isEmpty()) {
                throw new Violation(
                        "Compared",
                        fetch.request() + " was reported arrived, and no checksum of " + writer + " covers byte "
                                + missing.nextSetBit(0) + " of memory " + place);
            }
        }
        long pages = known.stream().mapToLong(this::comparedOf).sum();
        due.merge(fetch.process(), pages, Long::sum);
    }

    /** How many parts of a write count in its checksum. */
    private long comparedOf(Checksums.Write write) {
        int rest = write.getPartCount() - write.getFirstSummed();
        return rest <= 0 ? 0 : Math.ceilDiv(rest, mode.interval());
    }

    private static BitSet covered(FetchFacts fetch, List<Checksums.Write> writes, int regionId) {
        BitSet bytes = new BitSet();
        for (Checksums.Write write : writes) {
            List<Integer> pages = write.getContext()
                    ? List.of(fetch.contextSlot())
                    : fetch.pages().get(write.getGroup());
            for (int i = 0; i < write.getPartCount() && write.getRegionId() == regionId; i++) {
                int part = write.getFromPart() + i;
                long at = write.getOffsetBytes()
                        + pages.get(part / write.getPartsPerPage()) * write.getStrideBytes()
                        + part % write.getPartsPerPage() * write.getPartStrideBytes();
                bytes.set((int) at, (int) at + write.getPartBytes());
            }
        }
        return bytes;
    }
}
