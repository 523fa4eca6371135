package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.OpenWindow;
import io.kvmessenger.transfer.spi.Poller;
import io.kvmessenger.transfer.staging.Staging;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;

/**
 * All domain groups of an engine: balances what they are given, and merges their results.
 *
 * <p>Messenger's thread, except {@link #waiting}.
 */
final class DomainGroups {
    /** Receives drained completions together with the group they came from. */
    interface Sink {
        void accept(DomainGroup at, int kind, long cookie, long value, Object subject, String detail);
    }

    private final List<DomainGroup> all = new ArrayList<>();
    private final LinkSharing sharing;
    private final int ringCapacity;
    private final int liveMax;
    private int drainedFirst;

    /** Opens the domains of all groups, or of none. */
    DomainGroups(
            EngineLimits limits,
            EnginePorts enginePorts,
            List<Worker> workers,
            Runnable onCompletion,
            WindowTable windows,
            RegionTable regions,
            Sink sink) {
        List<WorkerPorts> ports = enginePorts.workers();
        sharing = enginePorts.sharing();
        ringCapacity = limits.completions();
        liveMax = limits.peers();
        for (int i = 0; i < ports.size(); i++) {
            CompletionRing completions = new CompletionRing(ringCapacity, onCompletion);
            Staging staging = new Staging(enginePorts.devices(), enginePorts.staging());
            LinkLoads loads = sharing.loads();
            all.add(new DomainGroup(ports.get(i), workers.get(i), completions, windows, regions, staging, loads, sink));
        }
        try {
            for (int i = 0; i < ports.size(); i++) {
                all.get(i).open(ports.get(i));
            }
        } catch (RuntimeException | Error e) {
            abandon();
            throw e;
        }
    }

    /** Closes everything; no worker has begun. */
    void abandon() {
        all.forEach(DomainGroup::abandon);
        release();
    }

    /** Closes what the workers have used; all have ended. */
    void release() {
        all.stream().map(DomainGroup::poller).forEach(Poller::close);
        all.stream().map(DomainGroup::loads).forEach(LinkLoads::close);
        sharing.close();
    }

    /** The group that peers reach first: its domains listen. */
    DomainGroup first() {
        return all.getFirst();
    }

    List<Domain> domains() {
        return all.stream().flatMap(group -> group.domains().stream()).toList();
    }

    /**
     * The group that the fewest have been given to. Among equals the last one, since the first also listens for all of
     * them.
     *
     * @param given the groups of all peers, or of all admissions
     */
    DomainGroup leastLoaded(Collection<DomainGroup> given) {
        return all.reversed().stream()
                .min(Comparator.comparingInt(group -> Collections.frequency(given, group)))
                .orElseThrow();
    }

    /** @throws IllegalStateException when so many are live that no more may be, or too many completions wait */
    void requireRoom(int liveCount, String what) {
        if (liveCount >= liveMax || waiting() > ringCapacity / 2) {
            throw new IllegalStateException(liveCount + " " + what + " are live and " + waiting()
                    + " completions wait; poll, and end some first");
        }
    }

    /** Completions waiting to be polled, over all workers. Any thread. */
    int waiting() {
        int count = 0;
        for (int i = 0; i < all.size(); i++) {
            count += all.get(i).completions().size();
        }
        return count;
    }

    /** Capacity of one worker's ring: in the extreme, all events of an engine happen at one worker. */
    int ringCapacity() {
        return ringCapacity;
    }

    /** Passes on up to {@code limit} completions, beginning with another worker each time, so that none starves. */
    int drain(int limit) {
        int count = 0;
        drainedFirst = (drainedFirst + 1) % all.size();
        for (int i = 0; i < all.size() && count < limit; i++) {
            count += all.get((drainedFirst + i) % all.size()).drain(limit - count);
        }
        return count;
    }

    void wake() {
        for (int i = 0; i < all.size(); i++) {
            all.get(i).worker().wake();
        }
    }

    /** Makes every worker abandon half-received writes for a closed window. */
    void letGo(OpenWindow window) {
        for (DomainGroup group : all) {
            group.worker().execute(() -> group.domains().forEach(domain -> domain.onWindowClosed(window)));
        }
    }

    /** Closes every admission that no link uses; all workers have ended. */
    void closeUnused(String detail) {
        all.forEach(group -> group.inboundWrites().closeUnused(detail));
    }

    long figure(TransferCounter counter) {
        return all.stream().mapToLong(group -> group.figures().of(counter)).sum();
    }

    /** The transport's share of a counter, over all groups. */
    long figure(String transport, TransferCounter counter) {
        return all.stream()
                .mapToLong(group -> group.figures().ofTransport(transport).of(counter))
                .sum();
    }
}
