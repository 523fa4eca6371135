package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.port.FetchFailure;
import io.kvmessenger.messenger.session.Deadlines;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The fetches that have not ended and their sources, indexed by request and by grant. Sets of those that need attention
 * keep a duty cycle from visiting the others. Owned by the messenger's thread.
 */
final class Fetches {
    private final Map<String, Fetch> byRequest = new LinkedHashMap<>();
    private final Set<FetchSource> sources = new LinkedHashSet<>();
    private final Map<Long, FetchSource> byGrant = new HashMap<>();

    /** Of the fetches that may still arrive. */
    private final Deadlines<Fetch> deadlines = new Deadlines<>();
    /** Everything has arrived; some pages may have to be compared before the end. */
    private final Set<Fetch> filled = new LinkedHashSet<>();
    /** They fail as soon as nothing can write any more. */
    private final Set<Fetch> failing = new LinkedHashSet<>();
    /** Sources whose end has a deadline, or whose count is looked at. Some may have ended already. */
    private final Set<FetchSource> ending = new LinkedHashSet<>();
    /** Sources that wait for a free imm slot, in order of their requests. Some may need none any more. */
    private final Set<FetchSource> slotless = new LinkedHashSet<>();

    private int windowCount;
    private long visits;

    void add(Fetch fetch) {
        byRequest.put(fetch.ask.request(), fetch);
        deadlines.set(fetch, fetch.deadlineNs);
    }

    void add(FetchSource source) {
        source.fetch.sources.add(source);
        sources.add(source);
    }

    void remove(Fetch fetch) {
        byRequest.remove(fetch.ask.request());
        deadlines.remove(fetch);
        filled.remove(fetch);
        failing.remove(fetch);
        fetch.sources.forEach(source -> {
            sources.remove(source);
            ending.remove(source);
            slotless.remove(source);
            byGrant.remove(source.grant.id);
        });
    }

    /** The request's fetch; null when none is under way. */
    Fetch of(String request) {
        return byRequest.get(request);
    }

    /** Marks a fetch as failing: it can no longer arrive. */
    void fail(Fetch fetch, FetchFailure why, String sentence) {
        fetch.failure = why;
        fetch.failureSentence = sentence;
        deadlines.remove(fetch);
        if (!fetch.ended) {
            failing.add(fetch);
        }
    }

    /** Records a source's first or repeated grant; the id of an earlier one becomes invalid. */
    void granted(FetchSource source, SourceGrant grant) {
        byGrant.remove(source.grant.id);
        slotless.remove(source);
        source.granted(grant);
        byGrant.put(grant.id, source);
        windowCount++;
    }

    /** Moves a source to {@code end}, or back to waiting for a grant; the caller knows that nothing more can land. */
    void end(FetchSource source, FetchSource.State end) {
        windowCount -= source.holdsWindow() ? 1 : 0;
        source.end(end);
        if (source.fetch.filled()) {
            filled.add(source.fetch);
        }
    }

    /** Tracks a source that is ending, under a deadline, or whose count is looked at. */
    void endBegins(FetchSource source) {
        ending.add(source);
    }

    /** Queues a source that needs a free imm slot before it can be granted. */
    void awaitSlot(FetchSource source) {
        slotless.add(source);
    }

    /** The source that has waited longest for an imm slot, or null. */
    FetchSource nextSlotless() {
        while (!slotless.isEmpty()) {
            visits++;
            FetchSource first = slotless.iterator().next();
            if (first.state() == FetchSource.State.WAITING && !first.fetch.failing() && first.session.takesWork()) {
                return first;
            }
            slotless.remove(first);
        }
        return null;
    }

    /** The source of this grant; null when its fetch has ended or the source has been granted again since. */
    FetchSource grantedBy(long grantId) {
        return byGrant.get(grantId);
    }

    int count() {
        return byRequest.size();
    }

    /** A copy, as fetches may end during the iteration. */
    List<Fetch> snapshot() {
        return looked(byRequest.values());
    }

    boolean anySourceAt(PrefillerSession session) {
        visits += sources.size();
        return sources.stream().anyMatch(source -> source.session == session);
    }

    List<FetchSource> sourcesAt(PrefillerSession session) {
        visits += sources.size();
        return sources.stream().filter(source -> source.session == session).toList();
    }

    /** Takes a fetch that may still arrive and whose deadline has passed; each is returned once. Null if none. */
    Fetch takeLate(long nowNs) {
        Fetch late = deadlines.takeOver(nowNs);
        visits += late == null ? 0 : 1;
        return late;
    }

    /** All fetches that have arrived; a copy. */
    List<Fetch> filled() {
        return looked(filled);
    }

    /** Sources that wait for the prefiller's confirmation or for writes to be counted; a copy. */
    List<FetchSource> ending() {
        visits += ending.size();
        ending.removeIf(source -> !source.ending() && !source.counting());
        return List.copyOf(ending);
    }

    /** @param otherwiseNs returned when no fetch has an earlier deadline */
    long nextDeadlineNs(long nowNs, long otherwiseNs) {
        long earliest = deadlines.earliestNs(otherwiseNs);
        for (FetchSource source : ending) {
            visits++;
            long dueNs = source.dueNs(nowNs, earliest);
            earliest = dueNs - earliest < 0 ? dueNs : earliest;
        }
        return earliest;
    }

    /** Number of entries in all indices: none is left of a fetch that has ended. */
    int entryCount() {
        return byRequest.size()
                + sources.size()
                + byGrant.size()
                + filled.size()
                + failing.size()
                + ending.size()
                + slotless.size();
    }

    int windowCount() {
        return windowCount;
    }

    int quarantinedPageCount() {
        int count = 0;
        for (Fetch fetch : failing) {
            visits++;
            count += fetch.holdsWindow() ? fetch.ask.pageCount() : 0;
        }
        return count;
    }

    /** Number of fetches and sources visited by loops over several of them: a bound on the cost of duty cycles. */
    long visits() {
        return visits;
    }

    private List<Fetch> looked(Collection<Fetch> walked) {
        visits += walked.size();
        return new ArrayList<>(walked);
    }
}
