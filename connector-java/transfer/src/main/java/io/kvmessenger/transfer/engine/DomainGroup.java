package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.link.Links;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.Poller;
import io.kvmessenger.transfer.staging.Staging;
import java.util.List;

/**
 * One worker with everything that it alone uses: its domains and links, the writes of its peers, its completions
 * and counters. A peer stays with one group in each direction.
 *
 * <p>Threading is that of its members.
 */
final class DomainGroup {
    private final Poller poller;
    private final Links links;
    private final Worker worker;
    private final CompletionRing completions;
    /** Names this group to the engine's sink. Kept: one for each call would be garbage. */
    private final CompletionRing.Sink withGroup;

    private final Staging staging;
    private final LinkLoads loads;
    private final InboundWrites inboundWrites;
    private final Figures figures = new Figures();
    private Domains domains = new Domains(List.of(), List.of());

    DomainGroup(
            WorkerPorts ports,
            Worker worker,
            CompletionRing completions,
            WindowTable windows,
            RegionTable regions,
            Staging staging,
            LinkLoads loads,
            DomainGroups.Sink sink) {
        poller = ports.poller();
        links = ports.links();
        this.worker = worker;
        this.completions = completions;
        withGroup = (kind, cookie, value, subject, detail) -> sink.accept(this, kind, cookie, value, subject, detail);
        this.staging = staging;
        this.loads = loads;
        inboundWrites = new InboundWrites(windows, regions, completions, figures, staging);
    }

    /** Opens the domains; called once, before the worker starts. */
    void open(WorkerPorts ports) {
        domains = Domains.open(ports.transports(), inboundWrites, figures);
        links.use(domains.open());
        worker.use(links, domains.open(), staging);
    }

    /** Closes links and domains of a group whose worker never started. */
    void abandon() {
        links.close();
        domains.open().forEach(Domain::close);
    }

    Staging staging() {
        return staging;
    }

    /** What the worker's peers have for its links. */
    LinkLoads loads() {
        return loads;
    }

    Poller poller() {
        return poller;
    }

    Links links() {
        return links;
    }

    Worker worker() {
        return worker;
    }

    CompletionRing completions() {
        return completions;
    }

    /** Passes on up to {@code limit} completions; returns how many. Messenger's thread. */
    int drain(int limit) {
        return completions.drain(withGroup, limit);
    }

    InboundWrites inboundWrites() {
        return inboundWrites;
    }

    Figures figures() {
        return figures;
    }

    List<Domain> domains() {
        return domains.open();
    }

    List<String> unavailable() {
        return domains.unavailable();
    }
}
