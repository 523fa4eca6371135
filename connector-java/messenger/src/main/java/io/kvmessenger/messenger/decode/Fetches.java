package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.port.FetchFailure;
import io.kvmessenger.messenger.session.Deadlines;
import io.kvmessenger.messenger.session.Session;
import io.kvmessenger.transfer.ImmWindow;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The fetches that have not ended, by request, their sources, and those that were granted by their last grant; and which of
 * them a duty cycle has to look at, so that it looks at no other. Owned by the messenger's thread.
 */
final class Fetches {
    private final Map<String, Fetch> byRequest = new LinkedHashMap<>();
    private final Set<FetchSource> sources = new LinkedHashSet<>();
    private final Map<Long, FetchSource> byGrant = new HashMap<>();

    /** Of those that may still arrive. */
    private final Deadlines<Fetch> deadlines = new Deadlines<>();
    /** All has arrived; some pages may have to be compared before they end. */
    private final Set<Fetch> filled = new LinkedHashSet<>();
    /** They fail, as soon as nothing can write any more. */
    private final Set<Fetch> failing = new LinkedHashSet<>();
    /** Their ends have a limit. Some may be over already. */
    private final Set<FetchSource> ending = new LinkedHashSet<>();
    /** Their grants wait for a free imm slot, in the order in which they asked. Some may want none any more. */
    private final Set<FetchSource> slotless = new LinkedHashSet<>();

    private int windowCount;
    private long looks;

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
            byGrant.remove(source.grantId);
        });
    }

    /** Null where no fetch of this request is under way. */
    Fetch of(String request) {
        return byRequest.get(request);
    }

    /** It may not arrive any more. */
    void fail(Fetch fetch, FetchFailure why, String sentence) {
        fetch.failure = why;
        fetch.failureSentence = sentence;
        deadlines.remove(fetch);
        if (!fetch.ended) {
            failing.add(fetch);
        }
    }

    /** Grants a source, for the first time or again: an earlier grant of it names nothing any more. */
    void granted(FetchSource source, long grantId, ImmWindow window, long expectedWeight) {
        byGrant.remove(source.grantId);
        slotless.remove(source);
        source.granted(grantId, window, expectedWeight);
        byGrant.put(grantId, source);
        windowCount++;
    }

    /** Ends a source, or has it wait for another grant; the caller knows that nothing more can land. */
    void end(FetchSource source, FetchSource.State end) {
        windowCount -= source.holdsWindow() ? 1 : 0;
        source.end(end);
        if (source.fetch.filled()) {
            filled.add(source.fetch);
        }
    }

    /** The end of a source has begun, and has a limit. */
    void endBegins(FetchSource source) {
        ending.add(source);
    }

    /** A source cannot be granted before an imm slot is free. */
    void awaitSlot(FetchSource source) {
        slotless.add(source);
    }

    /** The source that has waited longest for an imm slot, or null. */
    FetchSource nextSlotless() {
        while (!slotless.isEmpty()) {
            looks++;
            FetchSource first = slotless.iterator().next();
            if (first.state == FetchSource.State.WAITING && !first.fetch.failing() && first.session.ready()) {
                return first;
            }
            slotless.remove(first);
        }
        return null;
    }

    /** Null where its fetch has ended, or it was granted again since. */
    FetchSource grantedBy(long grantId) {
        return byGrant.get(grantId);
    }

    int count() {
        return byRequest.size();
    }

    /** A copy: fetches may end while it is gone through. */
    List<Fetch> snapshot() {
        return looked(byRequest.values());
    }

    List<FetchSource> sourcesAt(Session session) {
        looks += sources.size();
        return sources.stream().filter(source -> source.session == session).toList();
    }

    /** A fetch that may still arrive and whose time is over; each is returned once. Null when there is none. */
    Fetch takeLate(long nowNs) {
        Fetch late = deadlines.takeOver(nowNs);
        looks += late == null ? 0 : 1;
        return late;
    }

    /** All that have arrived; a copy. */
    List<Fetch> filled() {
        return looked(filled);
    }

    /** Sources that a prefiller has to confirm, or whose writes have to be counted; a copy. */
    List<FetchSource> ending() {
        looks += ending.size();
        ending.removeIf(source -> !source.ending());
        return List.copyOf(ending);
    }

    /** @param otherwiseNs where no fetch has a deadline before it */
    long nextDeadlineNs(long nowNs, long otherwiseNs) {
        long earliest = deadlines.earliestNs(otherwiseNs);
        for (FetchSource source : ending) {
            looks++;
            long dueNs = source.dueNs(nowNs, earliest);
            earliest = dueNs - earliest < 0 ? dueNs : earliest;
        }
        return earliest;
    }

    int windowCount() {
        return windowCount;
    }

    int quarantinedPageCount() {
        int count = 0;
        for (Fetch fetch : failing) {
            looks++;
            count += fetch.holdsWindow() ? fetch.ask.pageCount() : 0;
        }
        return count;
    }

    /** How many fetches and sources have been looked at in all walks over several: the cost of a duty cycle is bounded by it. */
    long looks() {
        return looks;
    }

    private List<Fetch> looked(Collection<Fetch> walked) {
        looks += walked.size();
        return new ArrayList<>(walked);
    }
}
