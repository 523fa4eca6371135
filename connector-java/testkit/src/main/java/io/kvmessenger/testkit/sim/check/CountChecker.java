package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.transfer.Imm;
import java.lang.foreign.MemorySegment;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Each page of each layer is counted once for a grant, never for another grant than the one it was written for, and an
 * arrival is reported with all of them counted. No imm is given out again while writes that carry it are under way.
 */
final class CountChecker implements WorldListener {
    private record Key(String process, int imm) {}

    private static final class Expectation {
        final String transferId;
        final long expectedWeight;
        final Set<PageMap.Place> countedPages = new HashSet<>();
        long countedWeight;

        Expectation(String transferId, long expectedWeight) {
            this.transferId = transferId;
            this.expectedWeight = expectedWeight;
        }
    }

    private final Map<String, PageMap> maps = new HashMap<>();
    private final Map<Key, Expectation> live = new HashMap<>();
    private final Map<Key, Integer> underWay = new HashMap<>();
    private final Map<String, String> transferByRequest = new HashMap<>();

    @Override
    public void processStarted(String process, KvGeometry geometry, MemorySegment memory) {
        maps.put(process, new PageMap(geometry));
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        transferByRequest.put(fetch.process() + fetch.request(), fetch.transferId());
    }

    @Override
    public void frameSent(String from, String to, ControlFrame frame) {
        if (frame.hasGrant()) {
            Grant grant = frame.getGrant();
            end(from, grant.getTransferId());
            Key key = new Key(from, grant.getImm());
            if (underWay.getOrDefault(key, 0) > 0) {
                throw new Violation(
                        "Count",
                        "imm " + Integer.toHexString(grant.getImm()) + " was given to transfer " + grant.getTransferId()
                                + " while earlier writes with it are under way");
            }
            long pieces =
                    (long) grant.getPageIndicesCount() * maps.get(from).layers().size();
            live.put(key, new Expectation(grant.getTransferId(), pieces));
        }
    }

    @Override
    public void writeSubmitted(PageWrite write) {
        underWay.merge(keyOf(write), 1, Integer::sum);
    }

    @Override
    public void writeGone(PageWrite write) {
        underWay.merge(keyOf(write), -1, Integer::sum);
    }

    @Override
    public void counted(PageWrite write) {
        Expectation expectation = live.get(keyOf(write));
        if (expectation == null) {
            throw new Violation("Count", write + " was counted and its grant is over");
        }
        List<PageMap.Place> places = maps.get(write.target()).cover(write.targetOffset(), write.lengthBytes());
        for (PageMap.Place place : places) {
            if (!expectation.countedPages.add(place)) {
                throw new Violation(
                        "Count", write + " was counted twice for transfer " + expectation.transferId + " at " + place);
            }
        }
        expectation.countedWeight += Imm.weight(write.imm());
        if (expectation.countedWeight > expectation.expectedWeight) {
            throw new Violation(
                    "Count",
                    "transfer " + expectation.transferId + " has " + expectation.countedWeight + " of "
                            + expectation.expectedWeight);
        }
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        String transferId = transferByRequest.get(process + request);
        Expectation found = live.entrySet().stream()
                .filter(e -> e.getKey().process.equals(process)
                        && e.getValue().transferId.equals(transferId))
                .map(Map.Entry::getValue)
                .findFirst()
                .orElse(null);
        if (found == null || found.countedWeight != found.expectedWeight) {
            throw new Violation(
                    "Count",
                    request + " was reported arrived with "
                            + (found == null ? "no grant" : found.countedWeight + " of " + found.expectedWeight));
        }
        end(process, transferId);
    }

    @Override
    public void fetchFailed(String process, String request, String reason) {
        end(process, transferByRequest.get(process + request));
    }

    private void end(String process, String transferId) {
        live.entrySet()
                .removeIf(e -> e.getKey().process.equals(process)
                        && e.getValue().transferId.equals(transferId));
    }

    private static Key keyOf(PageWrite write) {
        return new Key(write.target(), Imm.of(Imm.slot(write.imm()), Imm.generation(write.imm())));
    }
}
