package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Endpoint;
import java.util.HashMap;
import java.util.Map;

/** The links of one worker's paths, by name. Worker only. It knows no peers. */
final class LinkLoads {
    private final LinkBoard engine;
    private final LinkBoard machine;
    private final double share;
    private final Map<String, LinkLoad> byName = new HashMap<>();

    /**
     * None yet.
     *
     * @param engine for links that only this engine takes
     * @param machine for links that other processes take too
     * @param share as for {@link LinkLoad}
     */
    LinkLoads(LinkBoard engine, LinkBoard machine, double share) {
        this.engine = engine;
        this.machine = machine;
        this.share = share;
    }

    /** The link that a path takes. */
    LinkLoad of(Domain domain, Endpoint path, long nowNs) {
        String name = domain.name() + " " + path.link();
        LinkBoard board = path.link().isEmpty() ? engine : machine;
        return byName.computeIfAbsent(name, fresh -> new LinkLoad(board, board.numberOf(name), share, nowNs));
    }

    void close() {
        byName.values().forEach(LinkLoad::close);
    }
}
