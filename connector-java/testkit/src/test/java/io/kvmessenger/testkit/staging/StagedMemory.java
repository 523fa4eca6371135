package io.kvmessenger.testkit.staging;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.testkit.device.StandInCuda;
import io.kvmessenger.testkit.device.StandInMemories;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.EngineMemory;
import io.kvmessenger.testkit.transfer.InstalledFabric;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.device.DriverAccess;
import io.kvmessenger.transfer.engine.TransferEngines;

/** Engines whose region is a device's memory, of the stand-in for NVIDIA's driver, with transports that do not reach it. */
final class StagedMemory {
    private StagedMemory() {}

    /** By libfabric over tcp first, and by tcp. */
    static TransferOptions byLibFabric(TransferOptions options) {
        return InstalledFabric.byTcp(options).withTransports(TransferOptions.LIBFABRIC, TransferOptions.TCP);
    }

    /** Of a writer and its target the one of that name: the target's memory is a host's. */
    static DrivenEngine openFromDevice(String name, TransferOptions options, long memoryBytes) {
        return name.equals("target") ? new DrivenEngine(options, name, memoryBytes) : open(options, memoryBytes);
    }

    static DrivenEngine open(TransferOptions options, long memoryBytes) {
        return open(options, memoryBytes, new FfmLibC(), new DriverAccess(StandInCuda.library()));
    }

    static DrivenEngine open(TransferOptions options, long memoryBytes, LibC libC, DeviceAccess access) {
        EngineMemory memory = new StandInMemories().allocate(memoryBytes);
        return new DrivenEngine(options, memory, TransferEngines.open(options, libC, FfmLibFabric::new, access));
    }
}
