package io.kvmessenger.testkit.sim;

import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.spi.Capabilities;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.lang.foreign.MemorySegment;

/** The domain that a process falls back to: other paths through the same end of the fabric. */
record NextDomain(SimulatedTransport transport) implements Domain {
    static final String NAME = "simulated-next";

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public String location() {
        return transport.location();
    }

    @Override
    public RemoteKey register(Region region) {
        return transport.register(region);
    }

    @Override
    public OutboundPaths attach(OutboundChannel channel, String location, PathEvents events, long nowNs) {
        return transport.attachNext(channel, location, events);
    }

    @Override
    public InboundPaths admit(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
        return transport.admit(channel, from, wish, nowNs);
    }

    @Override
    public Capabilities capabilities() {
        Capabilities first = transport.capabilities();
        return new Capabilities(
                first.writeMaxBytes(), first.readsGathered(), Fall.NONE.repairLimitNs(), first.silenceLimitNs());
    }

    /** Does nothing: the first domain polls for both. */
    @Override
    public int poll(long nowNs) {
        return 0;
    }

    @Override
    public void close() {}
}
