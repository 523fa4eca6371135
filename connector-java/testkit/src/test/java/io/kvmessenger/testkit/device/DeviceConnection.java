package io.kvmessenger.testkit.device;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.testkit.transfer.DrivenEngine;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.engine.TransferEngines;

/** One engine writes to another one, by devices that a test has refuse calls. The test's thread. */
final class DeviceConnection {
    private static final long MEMORY_BYTES = 1 << 16;
    private static final long CONNECT_LIMIT_NS = 4_000_000_000L;

    final DrivenEngine from;
    final DrivenEngine to;
    final Admission admission;
    final Peer peer;

    DeviceConnection(DrivenEngine from, DrivenEngine to) {
        this.from = from;
        this.to = to;
        admission = to.engine().admit("writer");
        peer = from.engine().connect(to.engine().address(), admission.key(), "target");
        DrivenEngine.awaitBoth("readiness", from, to, () -> from.ready.contains(peer));
    }

    void shouldWrite(long cookie) {
        submit(cookie);
        DrivenEngine.awaitBoth(
                "what was written", from, to, () -> to.filled.contains(cookie) && from.completed.contains(cookie));
    }

    void submit(long cookie) {
        WindowRanges ranges = WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES);
        var window = to.openWindow(admission, ranges, 1, cookie);
        RemoteWindow remote = from.engine()
                .allow(peer, window.imm(), WindowArea.of(to.region().descriptor(), ranges));
        from.submit(peer, new SingleWrite(from.region(), 0, to.region().descriptor(), 0, 4096, remote, 1), cookie);
    }

    /** An engine on these devices. */
    static DrivenEngine open(LoopbackVerbs verbs, String... transports) {
        TransferOptions options = TransferOptions.defaults()
                .withTransports(transports)
                .with(TransferOptions.CONNECT_LIMIT_NS, CONNECT_LIMIT_NS);
        return new DrivenEngine(
                options,
                "engine",
                MEMORY_BYTES,
                TransferEngines.open(options, new FfmLibC(), FfmLibFabric::new, () -> verbs, DeviceAccess.NONE));
    }
}
