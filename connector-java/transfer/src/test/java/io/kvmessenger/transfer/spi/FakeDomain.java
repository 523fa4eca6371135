package io.kvmessenger.transfer.spi;

import io.kvmessenger.transfer.EngineAddress.TransportAddress;
import io.kvmessenger.transfer.Region;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/** A domain whose paths do nothing but what the test says; remembers the locations of those that did work and were closed. */
public class FakeDomain implements Domain {
    private final String name;
    private final long repairLimitNs;
    public final List<String> worked = new ArrayList<>();
    public final List<String> closed = new ArrayList<>();
    /** Of the paths that were attached last. */
    public PathEvents events;

    public int attached;
    /** Read when a peer is made. */
    public long silenceLimitNs;
    /** Thrown by the duty cycles of paths to this location. */
    public Error thrown;

    public String thrownAt = "";
    public Runnable onDutyCycle = () -> {};
    /** What a poll returns. */
    public int done;

    /** Where closings are remembered as well, when there is such a place. */
    public List<String> ended = new ArrayList<>();

    public FakeDomain(String name, long repairLimitNs) {
        this.name = name;
        this.repairLimitNs = repairLimitNs;
    }

    public TransportAddress at(String location) {
        return new TransportAddress(name, location);
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public String location() {
        return "";
    }

    @Override
    public RemoteKey register(Region region) {
        return null;
    }

    @Override
    public OutboundPaths attach(OutboundChannel channel, String location, PathEvents pathEvents, long nowNs) {
        events = pathEvents;
        attached++;
        return new OutboundPaths() {
            @Override
            public int doWork(long nowNs) {
                worked.add(location);
                if (location.equals(thrownAt) && thrown != null) {
                    throw thrown;
                }
                return 0;
            }

            @Override
            public void close() {
                closed.add(location);
                ended.add(name);
            }
        };
    }

    @Override
    public InboundPaths admit(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
        throw new IllegalStateException("admits no peer");
    }

    @Override
    public Capabilities capabilities() {
        return new Capabilities(Long.MAX_VALUE, false, repairLimitNs, silenceLimitNs);
    }

    @Override
    public int poll(long nowNs) {
        onDutyCycle.run();
        return done;
    }

    @Override
    public void close() {}
}
