package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.transfer.ImmWindow;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The fetches that have not ended, by request, their sources, and those that were granted by their last
 * grant. Owned by the messenger's thread. */
final class Fetches {
    private final Map<String, Fetch> byRequest = new LinkedHashMap<>();
    private final Set<FetchSource> sources = new LinkedHashSet<>();
    private final Map<Long, FetchSource> byGrant = new HashMap<>();

    void add(Fetch fetch) {
        byRequest.put(fetch.ask.request(), fetch);
    }

    void add(FetchSource source) {
        source.fetch.sources.add(source);
        sources.add(source);
    }

    void remove(Fetch fetch) {
        byRequest.remove(fetch.ask.request());
        fetch.sources.forEach(source -> {
            sources.remove(source);
            byGrant.remove(source.grantId);
        });
    }

    /** Null where no fetch of this request is under way. */
    Fetch of(String request) {
        return byRequest.get(request);
    }

    /** Grants a source, for the first time or again: an earlier grant of it names nothing any more. */
    void granted(FetchSource source, long grantId, ImmWindow window, long expectedWeight) {
        byGrant.remove(source.grantId);
        source.granted(grantId, window, expectedWeight);
        byGrant.put(grantId, source);
    }

    /** Null where its fetch has ended, or it was granted again since. */
    FetchSource grantedBy(long grantId) {
        return byGrant.get(grantId);
    }

    Collection<Fetch> all() {
        return byRequest.values();
    }

    /** A copy: fetches may end while it is gone through. */
    List<Fetch> snapshot() {
        return List.copyOf(byRequest.values());
    }

    List<FetchSource> sourcesAt(Session session) {
        return sources.stream().filter(source -> source.session == session).toList();
    }

    /** @param otherwiseNs where no fetch has a deadline before it */
    long nextDeadlineNs(long nowNs, long otherwiseNs) {
        long earliest = otherwiseNs;
        for (Fetch fetch : byRequest.values()) {
            if (!fetch.failing() && fetch.deadlineNs - earliest < 0) {
                earliest = fetch.deadlineNs;
            }
            for (FetchSource source : fetch.sources) {
                long dueNs = source.dueNs(nowNs, earliest);
                earliest = dueNs - earliest < 0 ? dueNs : earliest;
            }
        }
        return earliest;
    }

    int windowCount() {
        int count = 0;
        for (Fetch fetch : byRequest.values()) {
            for (FetchSource source : fetch.sources) {
                count += source.holdsWindow() ? 1 : 0;
            }
        }
        return count;
    }

    int quarantinedPageCount() {
        return byRequest.values().stream()
                .filter(fetch -> fetch.failing() && fetch.holdsWindow())
                .mapToInt(fetch -> fetch.ask.pageCount())
                .sum();
    }
}
