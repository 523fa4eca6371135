package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.OpenWindow;
import io.kvmessenger.transfer.spi.Poller;
import io.kvmessenger.transfer.staging.Staging;
import java.util.ArrayList;
import java.util.List;
import java.util.function.ToIntFunction;

/**
 * All workers of an engine, and what it has of each: spreads peers over them, and joins what they have done.
 *
 * <p>Messenger's thread, except {@link #waiting}.
 */
final class DomainGroups {
    /** Receives what is drained, with where it happened. */
    interface Sink {
        void accept(DomainGroup at, int kind, long cookie, long value, Object subject, String detail);
    }

    private final List<DomainGroup> all = new ArrayList<>();
    private final int ringCapacity;
    private int drainedFirst;

    /** Opens the domains of all, or nothing. */
    DomainGroups(
            EngineLimits limits,
            EnginePorts enginePorts,
            List<Worker> workers,
            Runnable onCompletion,
            WindowTable windows,
            RegionTable regions) {
        List<WorkerPorts> ports = enginePorts.workers();
        ringCapacity = limits.completions();
        for (int i = 0; i < ports.size(); i++) {
            CompletionRing completions = new CompletionRing(ringCapacity, onCompletion);
            Staging staging = new Staging(enginePorts.devices(), enginePorts.staging());
            all.add(new DomainGroup(ports.get(i), workers.get(i), completions, windows, regions, staging));
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
        closePollers();
    }

    /** All workers have ended. */
    void closePollers() {
        all.stream().map(DomainGroup::poller).forEach(Poller::close);
    }

    /** The one that peers find first: its domains listen. */
    DomainGroup first() {
        return all.getFirst();
    }

    /** Of every worker. */
    List<Domain> domains() {
        return all.stream().flatMap(group -> group.domains().stream()).toList();
    }

    /** Where the next peer to write to goes. */
    DomainGroup forPeer() {
        return leastOf(DomainGroup::peerCount);
    }

    /** Where the next peer that may write here goes. */
    DomainGroup forAdmission() {
        return leastOf(DomainGroup::admissionCount);
    }

    /** Of equals the last: the first one listens for all of them. */
    private DomainGroup leastOf(ToIntFunction<DomainGroup> load) {
        DomainGroup least = all.getFirst();
        for (DomainGroup group : all) {
            if (load.applyAsInt(group) <= load.applyAsInt(least)) {
                least = group;
            }
        }
        return least;
    }

    /** What waits to be polled, of all workers; any thread. */
    int waiting() {
        int count = 0;
        for (int i = 0; i < all.size(); i++) {
            count += all.get(i).completions().size();
        }
        return count;
    }

    /** What can wait at one worker: all that an engine causes may happen at one. */
    int ringCapacity() {
        return ringCapacity;
    }

    /** Hands out up to so many; another worker's first each time, so that none has to wait for the others. */
    int drain(Sink sink, int limit) {
        int count = 0;
        drainedFirst = (drainedFirst + 1) % all.size();
        for (int i = 0; i < all.size() && count < limit; i++) {
            DomainGroup at = all.get((drainedFirst + i) % all.size());
            count += at.completions()
                    .drain(
                            (kind, cookie, value, subject, detail) ->
                                    sink.accept(at, kind, cookie, value, subject, detail),
                            limit - count);
        }
        return count;
    }

    /** There may be something new for any of them. */
    void wake() {
        for (int i = 0; i < all.size(); i++) {
            all.get(i).worker().wake();
        }
    }

    /** Makes every worker let go of what is half received for a closed window. */
    void letGo(OpenWindow window) {
        for (DomainGroup group : all) {
            group.worker().execute(() -> group.domains().forEach(domain -> domain.onWindowClosed(window)));
        }
    }

    /** All workers have ended: closes every admission that no link uses. */
    void closeUnused(String detail) {
        all.forEach(group -> group.desk().closeUnused(detail));
    }

    long figure(TransferCounter counter) {
        return all.stream().mapToLong(group -> group.figures().of(counter)).sum();
    }

    /** The part of it that is the transport's own. */
    long figure(String transport, TransferCounter counter) {
        return all.stream()
                .mapToLong(group -> group.figures().ofTransport(transport).of(counter))
                .sum();
    }
}
