package io.kvmessenger.testkit.device;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.testkit.transfer.EngineMemory;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.device.DriverAccess;
import io.kvmessenger.transfer.engine.TransferEngines;
import io.kvmessenger.transfer.verbs.VerbsTransport;
import java.util.List;

/** Engines with two RDMA devices of {@link LoopbackVerbs} each, whose region is memory of the stand-in's devices, or a host's. */
final class DmaBufEngines {
    static final String[] NICS = {"loop0", "loop1"};

    final StandInCuda standIn = StandInCuda.load();
    final LoopbackVerbs verbs = new LoopbackVerbs(standIn, NICS);

    DrivenEngine onDevice(TransferOptions options, long memoryBytes) {
        return onDevice(options, memoryBytes, new DriverAccess(StandInCuda.library()));
    }

    DrivenEngine onDevice(TransferOptions options, long memoryBytes, DeviceAccess access) {
        return open(options, new StandInMemories().allocate(memoryBytes), access);
    }

    DrivenEngine onHost(TransferOptions options, String name, long memoryBytes) {
        return open(options, EngineMemory.host(name, memoryBytes), new DriverAccess(StandInCuda.library()));
    }

    DrivenEngine open(TransferOptions options, EngineMemory memory, DeviceAccess access) {
        TransferOptions byBoth = options.with(VerbsTransport.DEVICES, List.of(NICS));
        return new DrivenEngine(
                byBoth, memory, TransferEngines.open(byBoth, new FfmLibC(), FfmLibFabric::new, () -> verbs, access));
    }
}
