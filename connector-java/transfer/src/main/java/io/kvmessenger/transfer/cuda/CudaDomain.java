package io.kvmessenger.transfer.cuda;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RegionDescriptor;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.DeviceExport;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.path.PathDomain;
import io.kvmessenger.transfer.samehost.OfferedRegions;
import io.kvmessenger.transfer.samehost.RingInboundPaths;
import io.kvmessenger.transfer.socket.EventLoop;
import io.kvmessenger.transfer.spi.Capabilities;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundChannel;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.OutboundChannel;
import io.kvmessenger.transfer.spi.OutboundPaths;
import io.kvmessenger.transfer.spi.PathEvents;
import io.kvmessenger.transfer.spi.RemoteKey;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Maps peers' device memory, and lets them map this engine's. Worker only, except where stated.
 *
 * <p>Memory is handed only to an admitted peer on a Unix socket of the same user, and only while all regions can be:
 * device memory that the driver exports, and shareable host memory besides, such as that of context rows.
 */
final class CudaDomain extends PathDomain<RingInboundPaths> {
    private static final int NONE = -1;

    private final EventLoop loop;
    private final DeviceDriver driver;
    private final PinnedSources pinned;
    private final OfferedRegions offered = new OfferedRegions();
    /** The device of the first region in device memory, whose context exists already. */
    private volatile int copier = NONE;

    /** By region id; written by the messenger's thread, read by the worker. */
    private final ConcurrentHashMap<Integer, DeviceExport> exports = new ConcurrentHashMap<>();

    CudaDomain(
            EventLoop loop,
            long connectLimitNs,
            InboundPort port,
            Figures figures,
            String location,
            DeviceDriver driver) {
        super(TransferOptions.CUDA, location, Capabilities.PLAIN, port, figures, connectLimitNs);
        this.loop = loop;
        this.driver = driver;
        pinned = new PinnedSources(driver, this::copier);
    }

    /** @throws IllegalArgumentException when the driver does not know the memory as a device's */
    @Override
    public RemoteKey register(Region region) {
        RemoteKey key = switch (region.memory()) {
            case Memory.Host host -> host.isShareable() ? key(region, host.memfd()) : null;
            case Memory.Device device -> export(region, device);
        };
        if (key != null) {
            offered.add(key);
        }
        return key;
    }

    private static RemoteKey key(Region region, int descriptor) {
        RegionDescriptor described = region.descriptor();
        return new RemoteKey(described.regionId(), described.lengthBytes(), descriptor);
    }

    private RemoteKey export(Region region, Memory.Device device) {
        DeviceExport export;
        try {
            export = DeviceExport.of(driver, device);
        } catch (DeviceFault e) {
            throw new IllegalArgumentException(
                    device + " at 0x" + Long.toHexString(device.address()) + " is not device memory: " + e.getMessage()
                            + "; pass the address and the device that the engine allocated on",
                    e);
        }
        if (export == null) {
            return null;
        }
        RemoteKey key = key(region, Memory.Host.NOT_SHAREABLE);
        exports.put(key.regionId(), export);
        copier = copier == NONE ? device.ordinal() : copier;
        driver.prepareCopies(device.ordinal());
        return key;
    }

    @Override
    public List<String> notes() {
        return driver.notes();
    }

    @Override
    public long runsCopiedByKernel() {
        return driver.runsCopiedByKernel();
    }

    /** The device that copies from this side's host memory, and in whose context peers' memory is mapped. */
    private int copier() {
        return Math.max(0, copier);
    }

    @Override
    public boolean canRead(Memory memory) {
        return true;
    }

    @Override
    public void deregister(RemoteKey key) {
        offered.remove(key);
        exports.remove(key.regionId());
        pinned.release(key.regionId());
    }

    @Override
    public OutboundPaths attach(OutboundChannel channel, String peerLocation, PathEvents events, long nowNs) {
        if (!channel.carriesDescriptors()) {
            throw new IllegalArgumentException(
                    "the peer's Unix socket cannot be reached, so that it cannot hand over memory");
        }
        PeerMemories peer = new PeerMemories(loop.libC(), driver, this::copier);
        return new CudaOutboundPaths(
                loop.libC(),
                channel,
                events,
                figures(),
                nowNs + connectLimitNs(),
                peer,
                new BatchCopier(driver, pinned, this::copier));
    }

    @Override
    protected RingInboundPaths accept(InboundChannel channel, InboundAdmission from, MemorySegment wish, long nowNs) {
        if (!channel.carriesDescriptors()) {
            throw new IllegalArgumentException("memory is handed over on a Unix socket only");
        }
        if (!channel.watchesProcess()) {
            throw new IllegalArgumentException(
                    "the end of the writer's process cannot be seen from here, and its device"
                            + " could write after its sockets have ended: let both processes share a PID namespace, or leave"
                            + " cuda out of the transports");
        }
        DeviceSender sender =
                new DeviceSender(loop.libC(), wanted -> port().keyOf(this, wanted), exports::get, offered);
        return new RingInboundPaths(loop, port(), sender, from, figures(), channel, true, nowNs + connectLimitNs());
    }

    @Override
    public void arm() {
        forEachAdmitted(RingInboundPaths::park);
    }

    @Override
    public void disarm() {
        forEachAdmitted(RingInboundPaths::unpark);
    }

    @Override
    protected void release() {
        pinned.close();
        driver.close();
    }
}
