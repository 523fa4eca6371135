package io.kvmessenger.testkit.transfer;

import io.kvmessenger.foreign.FfmLibFabric;
import io.kvmessenger.foreign.FfmLibVerbs;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;

/**
 * A writer and a target over real sockets, in time that the test moves: however slow the machine is, no limit is
 * exceeded that the test does not exceed. One thread.
 */
final class TestedClock implements AutoCloseable {
    /** Duty cycles for what needs no time: far more than any of it takes. */
    private static final int CYCLES_MAX = 1_000_000;

    private final AtomicLong clockNs = new AtomicLong();
    final DrivenEngine writer;
    final DrivenEngine target;
    Admission admission;
    Peer peer;
    private long cookie;

    TestedClock(TransferOptions options, long memoryBytes, LibC ofWriter, LibC ofTarget) {
        TransferOptions driven = options.with(TransferOptions.THREADING, ThreadingMode.CALLER);
        writer = new DrivenEngine(driven, "writer", memoryBytes, open(driven, ofWriter));
        target = new DrivenEngine(driven, "target", memoryBytes, open(driven, ofTarget));
        connect();
    }

    private TransferEngine open(TransferOptions options, LibC libC) {
        return TransferEngines.open(
                options,
                libC,
                FfmLibFabric::new,
                () -> new FfmLibVerbs(FfmLibVerbs.DEFAULT_NAME),
                DeviceAccess.NONE,
                clockNs::get);
    }

    /** Opens paths with an admission of their own. */
    void connect() {
        admission = target.engine().admit("writer");
        peer = writer.engine().connect(target.engine().address(), admission.key(), "target");
        Peer wanted = peer;
        reach(0, 0, () -> writer.ready.contains(wanted));
    }

    /** Submits a write of so many bytes; returns its cookie. */
    long write(long lengthBytes) {
        WindowArea area =
                WindowArea.of(target.region().descriptor(), WindowRanges.ofEqual(new long[] {0}, lengthBytes));
        cookie++;
        ImmWindow window = target.engine().openWindow(admission, area, 1, cookie);
        RemoteWindow remote = writer.engine().allow(peer, window.imm(), area);
        SingleWrite write =
                new SingleWrite(writer.region(), 0, target.region().descriptor(), 0, lengthBytes, remote, 1);
        writer.submit(peer, write, cookie);
        return cookie;
    }

    /** One duty cycle of both. */
    void cycle() {
        cycleOf(writer);
        cycleOf(target);
    }

    /** One duty cycle of one: the other is stopped. */
    static void cycleOf(DrivenEngine engine) {
        engine.poll();
        engine.engine().await(1);
    }

    void pass(long stepNs) {
        clockNs.addAndGet(stepNs);
    }

    /** Runs both until the condition holds, and returns how much time passed; fails beyond the limit. */
    long reach(long stepNs, long limitNs, BooleanSupplier condition) {
        long beganNs = clockNs.get();
        for (int cycles = 0; !condition.getAsBoolean(); cycles++) {
            if (clockNs.get() - beganNs > limitNs || cycles > CYCLES_MAX) {
                throw new AssertionError("not within " + limitNs + " ns; " + writer + " / " + target);
            }
            cycle();
            pass(stepNs);
        }
        return clockNs.get() - beganNs;
    }

    long nowNs() {
        return clockNs.get();
    }

    @Override
    public void close() {
        writer.close();
        target.close();
    }
}
