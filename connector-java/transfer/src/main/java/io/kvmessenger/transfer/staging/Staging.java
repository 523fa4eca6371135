package io.kvmessenger.transfer.staging;

import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.GrantedSlabs;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Landing;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * One worker's copies between devices and the page-locked host memory that its transports read and write instead.
 *
 * <p>Worker only, except {@link #refusal}. Streams and pinned memory are created on first use; an engine with host
 * memory only has neither.
 */
public final class Staging {
    private final DeviceAccess access;
    private final StagingLimits limits;
    private final SlabPool outgoing;
    private final SlabPool incoming;
    private final List<CopyLane.User> users = new ArrayList<>();
    private final List<DeviceLanding> landings = new ArrayList<>();
    /** By index of {@link #landings}: its admission, and the holder of its slabs. */
    private final List<InboundAdmission> owners = new ArrayList<>();

    private final List<SlabPool.Holder> holders = new ArrayList<>();
    private final SlabGroups groups;
    private final List<SlabLanding> granted = new ArrayList<>();
    // By the device's ordinal.
    private final List<CopyLane> toHost = new ArrayList<>();
    private final List<CopyLane> fromHost = new ArrayList<>();

    public Staging(DeviceAccess access, StagingLimits limits) {
        this.access = access;
        this.limits = limits;
        outgoing = new SlabPool(limits, GrantedSlabs.ROOM_BYTES, access);
        incoming = new SlabPool(limits, access);
        groups = new SlabGroups(limits.grants(), GrantedSlabs.ROOM_BYTES, access);
    }

    /** Any thread: why this memory cannot be copied to and from, or null. */
    public String refusal(Memory.Device memory) {
        return access.refusal(memory.ordinal());
    }

    public StagingLimits limits() {
        return limits;
    }

    /** Gathers the writes to one peer, until {@link #release released}. */
    public GatheredWrites gather(GatheredWrites.Splitter splitter) {
        GatheredWrites made = new GatheredWrites(this, outgoing, splitter);
        users.add(made);
        return made;
    }

    /** The peer's writes are closed, and read nothing any more. */
    public void release(GatheredWrites gathered) {
        users.remove(gathered);
    }

    /** A landing for one path of a peer, until the path has closed it and all its copies are done. */
    public Landing landing(InboundAdmission from, InboundPort port, Figures figures, Landing.Events events) {
        int sibling = owners.indexOf(from);
        SlabPool.Holder holder = sibling < 0 ? new SlabPool.Holder() : holders.get(sibling);
        DeviceLanding made = new DeviceLanding(this, incoming, holder, port, from, figures, events);
        landings.add(made);
        owners.add(from);
        holders.add(holder);
        users.add(made);
        return made;
    }

    /**
     * Slabs that a peer writes to, until its path has closed them and all their copies are done; null if none are left.
     *
     * @throws DeviceFault when the driver refuses memory
     */
    public GrantedSlabs grant(InboundAdmission from, InboundPort port, Figures figures, GrantedSlabs.Events events) {
        MemorySegment group = groups.take();
        if (group == null) {
            return null;
        }
        SlabLanding made = new SlabLanding(this, group, port, from, figures, events);
        granted.add(made);
        users.add(made);
        return made;
    }

    CopyLane laneToHost(int ordinal) {
        return lane(toHost, ordinal);
    }

    CopyLane laneFromHost(int ordinal) {
        return lane(fromHost, ordinal);
    }

    private CopyLane lane(List<CopyLane> lanes, int ordinal) {
        while (lanes.size() <= ordinal) {
            lanes.add(new CopyLane(access, lanes.size(), users));
        }
        return lanes.get(ordinal);
    }

    /** Counts what was received and copied; returns the work done, 0 when idle, or {@link Domain#LOOK_SOON}. */
    public int poll() {
        int work = 0;
        boolean copying = false;
        for (int i = landings.size() - 1; i >= 0; i--) {
            DeviceLanding landing = landings.get(i);
            work += landing.poll();
            copying |= !landing.isSettled();
            if (landing.isOver()) {
                remove(i);
            }
        }
        for (int i = granted.size() - 1; i >= 0; i--) {
            SlabLanding landing = granted.get(i);
            work += landing.poll();
            copying |= !landing.isSettled();
            if (landing.isOver()) {
                users.remove(granted.remove(i));
                groups.give(landing.memory());
            }
        }
        return copying && work == 0 ? Domain.LOOK_SOON : work;
    }

    private void remove(int i) {
        incoming.rest(holders.get(i));
        users.remove(landings.remove(i));
        owners.remove(i);
        holders.remove(i);
    }

    /** Waits until no copy runs; copies not seen done before are neither counted nor sent. */
    public void close() {
        DeviceFault end = new DeviceFault("a copy", "the engine's end");
        landings.forEach(DeviceLanding::close);
        granted.forEach(SlabLanding::close);
        toHost.forEach(lane -> lane.close(end));
        fromHost.forEach(lane -> lane.close(end));
        landings.forEach(DeviceLanding::dropLanded);
    }
}
