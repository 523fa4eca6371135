package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.session.Session;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The fetches that have not ended, by request, and their sources, by cookie. Owned by the messenger's thread. */
final class Fetches {
    private final Map<String, Fetch> byRequest = new LinkedHashMap<>();
    private final Map<Long, FetchSource> byCookie = new LinkedHashMap<>();

    void add(Fetch fetch) {
        byRequest.put(fetch.ask.request(), fetch);
    }

    void add(FetchSource source) {
        source.fetch.sources.add(source);
        byCookie.put(source.cookie, source);
    }

    void remove(Fetch fetch) {
        byRequest.remove(fetch.ask.request());
        fetch.sources.forEach(source -> byCookie.remove(source.cookie));
    }

    /** Null where no fetch of this request is under way. */
    Fetch of(String request) {
        return byRequest.get(request);
    }

    /** Null where its fetch has ended. */
    FetchSource source(long cookie) {
        return byCookie.get(cookie);
    }

    Collection<Fetch> all() {
        return byRequest.values();
    }

    /** A copy: fetches may end while it is gone through. */
    List<Fetch> snapshot() {
        return List.copyOf(byRequest.values());
    }

    List<FetchSource> sourcesAt(Session session) {
        return byCookie.values().stream()
                .filter(source -> source.session == session)
                .toList();
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
