package io.kvmessenger.transfer.path;

import io.kvmessenger.transfer.spi.Capabilities;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPaths;
import io.kvmessenger.transfer.spi.InboundPort;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * A domain whose duty cycle is that of the paths that it has admitted. Threading as {@link Domain}.
 *
 * @param <T> the paths of one admitted peer
 */
public abstract class PathDomain<T extends ReaderPaths> implements Domain {
    private final String name;
    private final String location;
    private final Capabilities capabilities;
    private final InboundPort port;
    private final Figures figures;
    private final long connectLimitNs;
    private final List<T> inbound = new ArrayList<>();

    /** @param connectLimitNs how long paths may take to open */
    protected PathDomain(
            String name,
            String location,
            Capabilities capabilities,
            InboundPort port,
            Figures figures,
            long connectLimitNs) {
        this.name = name;
        this.location = location;
        this.capabilities = capabilities;
        this.port = port;
        this.figures = figures;
        this.connectLimitNs = connectLimitNs;
    }

    /** Accepts a peer's request, as {@link #admit}. */
    protected abstract T accept(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs);

    /** Releases what the domain has; its paths are closed already. */
    protected abstract void release();

    /** In each duty cycle: ends what is left of paths that are closed. Returns whether something is left. */
    protected boolean clearUp(long nowNs) {
        return false;
    }

    protected final InboundPort port() {
        return port;
    }

    protected final Figures figures() {
        return figures;
    }

    protected final long connectLimitNs() {
        return connectLimitNs;
    }

    protected final void forEachAdmitted(Consumer<T> action) {
        inbound.forEach(action);
    }

    @Override
    public final String name() {
        return name;
    }

    @Override
    public final String location() {
        return location;
    }

    @Override
    public final Capabilities capabilities() {
        return capabilities;
    }

    @Override
    public final InboundPaths admit(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
        T paths = accept(channel, from, wish, nowNs);
        inbound.add(paths);
        return paths;
    }

    @Override
    public final int poll(long nowNs) {
        int work = 0;
        boolean waits = clearUp(nowNs);
        for (int i = inbound.size() - 1; i >= 0; i--) {
            T paths = inbound.get(i);
            work += paths.poll(nowNs);
            if (paths.isFinished()) {
                inbound.remove(paths);
            } else {
                waits |= paths.isWaiting();
            }
        }
        return work == 0 && waits ? LOOK_SOON : work;
    }

    @Override
    public final void close() {
        inbound.clear();
        release();
    }
}
