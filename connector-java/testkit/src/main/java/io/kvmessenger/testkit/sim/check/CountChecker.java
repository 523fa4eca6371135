package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.Grant;
import io.kvmessenger.testkit.sim.ContextPool;
import io.kvmessenger.testkit.sim.PageContent;
import io.kvmessenger.transfer.Imm;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Each granted byte of each rank is counted once for a fetch, whichever grant it was written for, never for another
 * grant than that, and an arrival is reported with all of them counted. No imm is assigned again while writes that
 * carry it are in flight.
 */
final class CountChecker implements WorldListener {
    /** @param use 0 for the grant that has the imm now; others for earlier grants that their fetches still count on */
    private record Key(String process, int imm, long use) {}

    /** What has been counted for one grant. */
    private static final class Counted {
        final String writer;
        final String request;
        /** By rank: offsets into its memory. */
        final List<BitSet> bytes = new ArrayList<>();

        Counted(String writer, String request, int rankCount) {
            this.writer = writer;
            this.request = request;
            for (int i = 0; i < rankCount; i++) {
                bytes.add(new BitSet());
            }
        }
    }

    private final Map<String, KvGeometry> geometries = new HashMap<>();
    /** By process: number of ranks and kinds of context rows. */
    private final Map<String, Integer> memoryCounts = new HashMap<>();

    private final Map<Key, Counted> live = new HashMap<>();
    private long lastUse;
    private final Map<Key, Integer> underWay = new HashMap<>();
    private final Map<String, FetchFacts> fetches = new HashMap<>();
    private final OpenFetches open = new OpenFetches();

    @Override
    public void processStarted(String process, KvGeometry geometry, List<MemorySegment> memories) {
        geometries.put(process, geometry);
        memoryCounts.put(process, memories.size());
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        fetches.put(fetch.process() + fetch.request(), fetch);
        open.add(fetch);
    }

    @Override
    public void frameSent(String from, String to, ControlFrame frame) {
        if (frame.hasGrant()) {
            Grant grant = frame.getGrant();
            String request = open.grantedBy(from, grant).request();
            live.entrySet()
                    .removeIf(e -> e.getKey().process.equals(from)
                            && e.getValue().writer.equals(to)
                            && e.getValue().request.equals(request));
            Key key = new Key(from, grant.getImm(), 0);
            if (underWay.getOrDefault(key, 0) > 0) {
                throw new Violation(
                        "Count",
                        "imm " + Integer.toHexString(grant.getImm()) + " was given to " + request
                                + " while earlier writes with it are under way");
            }
            Counted before = live.remove(key);
            if (before != null) {
                live.put(new Key(from, grant.getImm(), ++lastUse), before);
            }
            live.put(key, new Counted(to, request, memoryCounts.get(from)));
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
        Counted counted = live.get(keyOf(write));
        if (counted == null) {
            throw new Violation("Count", write + " was counted and its grant is over");
        }
        int from = (int) write.targetOffset();
        int to = from + write.lengthBytes();
        boolean context =
                write.targetRank() >= geometries.get(write.target()).ranks().size();
        List<Counted> once =
                context ? List.of(counted) : of(write.target(), counted.request); // each source writes all rows
        for (Counted each : once) {
            int already = each.bytes.get(write.targetRank()).nextSetBit(from);
            if (already >= 0 && already < to) {
                throw new Violation("Count", write + " was counted twice for " + counted.request + " at " + already);
            }
        }
        counted.bytes.get(write.targetRank()).set(from, to);
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        checkAllCounted(process, request);
        end(process, request);
    }

    private void checkAllCounted(String process, String request) {
        FetchFacts fetch = fetches.get(process + request);
        List<Counted> found = of(process, request);
        KvGeometry geometry = geometries.get(process);
        for (int rank = 0; rank < geometry.ranks().size(); rank++) {
            BitSet all = new BitSet();
            for (Counted each : found) {
                all.or(each.bytes.get(rank));
            }
            List<LayerGeometry> layers = geometry.ranks().get(rank).layers();
            for (int i = 0; i < layers.size(); i++) {
                checkAllCounted(fetch, geometry, layers.get(i), new PageContent(geometry, rank, i), all);
            }
        }
        found.forEach(source -> checkRowsCounted(fetch, source, geometry.ranks().size()));
    }

    private static void checkRowsCounted(FetchFacts fetch, Counted source, int rankCount) {
        for (int kind : fetch.context().positions()) {
            int from = ContextPool.offsetOf(fetch.contextSlot());
            int to = from + ContextPool.rowBytes(kind);
            if (source.bytes.get(rankCount + kind).nextClearBit(from) < to) {
                throw new Violation(
                        "Count",
                        fetch.request() + " was reported arrived, and a context row of " + source.writer
                                + " was not counted");
            }
        }
    }

    private static void checkAllCounted(
            FetchFacts fetch, KvGeometry geometry, LayerGeometry layer, PageContent content, BitSet counted) {
        List<Integer> pages = fetch.pages().get(layer.groupIndex());
        for (int i = 0; i < pages.size(); i++) {
            int at = (int) layer.pageOffsetBytes(pages.get(i));
            int firstToken = fetch.firstToken() + i * geometry.groupOf(layer).pageTokens();
            for (int b = 0; b < layer.pageBytes(); b++) {
                boolean granted = firstToken + content.tokenInPage(b) < fetch.promptTokens();
                if (granted && !counted.get(at + b)) {
                    throw new Violation(
                            "Count",
                            fetch.request() + " was reported arrived and byte " + b + " of page " + pages.get(i)
                                    + " of " + layer.name() + " was not counted");
                }
            }
        }
    }

    @Override
    public void fetchFailed(String process, String request, String reason) {
        end(process, request);
    }

    /** The fetch that a grant is for. */
    FetchFacts grantedBy(String process, Grant grant) {
        return open.grantedBy(process, grant);
    }

    /** Whether a fetch that has not ended was granted, and every granted byte of it has been counted. */
    boolean hasAll(String process, String request) {
        if (of(process, request).isEmpty()) {
            return false;
        }
        try {
            checkAllCounted(process, request);
            return true;
        } catch (Violation missing) {
            return false;
        }
    }

    /** What has been counted for the last grant of a fetch to this writer, by rank and kind of context row. */
    List<BitSet> countedFrom(String process, String request, String writer) {
        return of(process, request).stream()
                .filter(counted -> counted.writer.equals(writer))
                .findFirst()
                .map(counted -> counted.bytes)
                .orElse(List.of());
    }

    private List<Counted> of(String process, String request) {
        return live.entrySet().stream()
                .filter(e -> e.getKey().process.equals(process)
                        && e.getValue().request.equals(request))
                .map(Map.Entry::getValue)
                .toList();
    }

    private void end(String process, String request) {
        open.remove(process, request);
        live.entrySet()
                .removeIf(e -> e.getKey().process.equals(process)
                        && e.getValue().request.equals(request));
    }

    private static Key keyOf(PageWrite write) {
        return new Key(write.target(), Imm.of(Imm.slot(write.imm()), Imm.generation(write.imm())), 0);
    }
}
