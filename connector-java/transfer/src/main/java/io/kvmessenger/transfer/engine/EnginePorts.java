package io.kvmessenger.transfer.engine;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.link.Links;
import io.kvmessenger.transfer.spi.Poller;
import io.kvmessenger.transfer.spi.Transport;
import io.kvmessenger.transfer.staging.StagingLimits;
import java.util.List;
import java.util.function.LongSupplier;
import java.util.random.RandomGenerator;

/**
 * The dependencies of an engine: time, randomness, its workers' pollers and transports. A value.
 *
 * @param libC queried about memory that is registered
 * @param clock monotonic, in ns
 * @param random source of keys
 * @param devices copies between devices and host memory; closed with the engine
 * @param staging amount of host memory that each worker stages in
 * @param sharing how traffic classes share links
 * @param workers at least one; all have domains at the same locations, where the first one's listen
 */
public record EnginePorts(
        LibC libC,
        LongSupplier clock,
        RandomGenerator random,
        DeviceAccess devices,
        StagingLimits staging,
        LinkSharing sharing,
        List<WorkerPorts> workers) {
    public EnginePorts {
        workers = List.copyOf(workers);
        if (workers.isEmpty()) {
            throw new IllegalArgumentException("an engine needs a worker");
        }
    }

    /** For an engine without devices. */
    public EnginePorts(LibC libC, LongSupplier clock, RandomGenerator random, List<WorkerPorts> workers) {
        this(libC, clock, random, DeviceAccess.NONE, StagingLimits.STANDARD, workers);
    }

    /** For an engine that sees no other's traffic. */
    public EnginePorts(
            LibC libC,
            LongSupplier clock,
            RandomGenerator random,
            DeviceAccess devices,
            StagingLimits staging,
            List<WorkerPorts> workers) {
        this(libC, clock, random, devices, staging, LinkSharing.ofEngine(), workers);
    }

    /** For an engine with one worker and without devices. */
    public EnginePorts(
            LibC libC,
            LongSupplier clock,
            RandomGenerator random,
            Poller poller,
            Links links,
            List<Transport> transports) {
        this(libC, clock, random, List.of(new WorkerPorts(poller, links, transports)));
    }
}
