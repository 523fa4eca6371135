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
 * No byte lands in a page without a valid grant of that generation to the process that writes. A grant is valid from
 * its frame until the decoder's engine receives the end, or until pages of the same fetch are granted to that process
 * again.
 */
final class GrantChecker implements WorldListener {
    private record Key(String process, int imm) {}

    private record LiveGrant(String writer, FetchFacts fetch, List<Set<Integer>> pages, int contextSlot) {
        String request() {
            return fetch.request();
        }

        /** @param rankCount kinds of context rows are numbered after the ranks */
        boolean covers(PageMap.Place place, int rankCount) {
            return place.groupIndex() == PageMap.CONTEXT
                    ? place.page() == contextSlot && fetch.context().has(place.rankIndex() - rankCount)
                    : pages.get(place.groupIndex()).contains(place.page());
        }
    }

    /** Whether slots have so few generations that one repeats while its first transfer waits for its other sources. */
    private final boolean immsRepeat;

    private final Map<String, PageMap> maps = new HashMap<>();
    private final Map<Key, LiveGrant> live = new HashMap<>();
    private final OpenFetches fetches = new OpenFetches();

    GrantChecker(boolean immsRepeat) {
        this.immsRepeat = immsRepeat;
    }

    @Override
    public void processStarted(String process, KvGeometry geometry, List<MemorySegment> memories) {
        maps.put(process, new PageMap(geometry));
    }

    @Override
    public void fetchAsked(FetchFacts fetch) {
        fetches.add(fetch);
    }

    @Override
    public void frameSent(String from, String to, ControlFrame frame) {
        if (frame.hasGrant()) {
            Grant grant = frame.getGrant();
            FetchFacts fetch = fetches.grantedBy(from, grant);
            String request = fetch.request();
            end(from, to, request);
            LiveGrant before = live.put(
                    new Key(from, grant.getImm()),
                    new LiveGrant(to, fetch, pagesOf(grant), grant.getContextSlot() - 1));
            if (before != null && !immsRepeat) {
                throw violation("imm " + Integer.toHexString(grant.getImm()) + " of " + from + " was given to "
                        + request + " while " + before.request() + " has it");
            }
        }
    }

    private static List<Set<Integer>> pagesOf(Grant grant) {
        return grant.getGroupsList().stream()
                .<Set<Integer>>map(list -> new HashSet<>(list.getPageIndicesList()))
                .toList();
    }

    @Override
    public void fetchArrived(String process, String request, int pageCount) {
        end(process, request);
    }

    @Override
    public void fetchFailed(String process, String request, String reason) {
        end(process, request);
    }

    private void end(String process, String writer, String request) {
        live.entrySet()
                .removeIf(e -> e.getKey().process.equals(process)
                        && e.getValue().writer.equals(writer)
                        && e.getValue().request().equals(request));
    }

    private void end(String process, String request) {
        fetches.remove(process, request);
        live.entrySet()
                .removeIf(e -> e.getKey().process.equals(process)
                        && e.getValue().request().equals(request));
    }

    @Override
    public void landed(PageWrite write, int fromByte, int toByte) {
        List<PageMap.Place> places =
                maps.get(write.target()).cover(write.targetRank(), write.targetOffset(), write.lengthBytes());
        if (places.isEmpty()) {
            throw violation(write + " landed outside all pages");
        }
        int imm = Imm.of(Imm.slot(write.imm()), Imm.generation(write.imm()));
        LiveGrant grant = live.get(new Key(write.target(), imm));
        if (grant == null) {
            throw violation(write + " landed in " + places + " and its grant is over");
        }
        if (!grant.writer.equals(write.source())) {
            throw violation(write + " landed, and its grant was given to " + grant.writer);
        }
        for (PageMap.Place place : places) {
            if (!grant.covers(place, maps.get(write.target()).geometry().ranks().size())) {
                throw violation(write + " landed in " + place + ", which " + grant.request() + " does not grant");
            }
        }
    }

    @Override
    public void writeRefused(String process, String detail) {
        throw violation("a write was refused at " + process + ": " + detail);
    }

    private static Violation violation(String sentence) {
        return new Violation("Grant", sentence);
    }
}
