package io.kvmessenger.testkit.transfer;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.engine.TransferEngines;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/**
 * An engine with one region, driven by a test: records every completion and waits for conditions.
 *
 * <p>One thread. An engine without a thread of its own makes progress only while it is polled: if one engine waits for
 * another, the other has to run {@link #alongside}.
 */
public final class DrivenEngine implements CompletionHandler, AutoCloseable {
    /** So long that a machine with much other work to do does not reach it. */
    private static final long AWAIT_LIMIT_NS = TimeUnit.MINUTES.toNanos(10);
    /** Interval for checking conditions that no event signals, like a process's end. */
    private static final long LOOK_NS = TimeUnit.MILLISECONDS.toNanos(20);
    /** The same with a second engine that makes progress only while it is polled. */
    private static final long CYCLE_NS = TimeUnit.MICROSECONDS.toNanos(100);

    private static final int POLL_LIMIT = 64;

    /** A write that failed. */
    public record Failure(TransferFault fault, String detail) {}

    /** A window that received too much. */
    public record Overshoot(long arrivedWeight, long expectedWeight) {}

    private final TransferOptions options;
    private final TransferEngine engine;
    private final EngineMemory memory;
    private final Region region;

    /** Number of completions of each cookie, of any kind. */
    public final Map<Long, Integer> endings = new HashMap<>();

    public final List<Long> completed = new ArrayList<>();
    public final Map<Long, Failure> failed = new HashMap<>();
    /** Failed members of requests to groups, by cookie. */
    public final Map<Long, Map<Peer, Failure>> failedMembers = new HashMap<>();

    public final List<Long> filled = new ArrayList<>();
    public final List<Long> closedReadWindows = new ArrayList<>();
    public final Map<Long, Overshoot> overshot = new HashMap<>();
    public final List<Peer> ready = new ArrayList<>();
    public final Map<Integer, Failure> lost = new HashMap<>();
    public final Map<Integer, String> closedAdmissions = new HashMap<>();
    public final List<String> refused = new ArrayList<>();
    public final List<byte[]> messages = new ArrayList<>();
    private Runnable onFilled = () -> {};
    private DrivenEngine companion;

    public DrivenEngine(TransferOptions options, String name, long memoryBytes) {
        this(options, name, memoryBytes, new FfmLibC());
    }

    public DrivenEngine(TransferOptions options, String name, long memoryBytes, LibC libC) {
        this(EngineMemory.OfDevices.wantedBy(options), options, name, memoryBytes, libC);
    }

    private DrivenEngine(
            EngineMemory.OfDevices devices, TransferOptions options, String name, long memoryBytes, LibC libC) {
        this(
                options,
                devices == null ? EngineMemory.host(name, memoryBytes) : devices.allocate(memoryBytes),
                TransferEngines.open(devices == null ? options : devices.prepare(options), libC));
    }

    public DrivenEngine(TransferOptions options, String name, long memoryBytes, TransferEngine engine) {
        this(options, EngineMemory.host(name, memoryBytes), engine);
    }

    public DrivenEngine(TransferOptions options, EngineMemory memory, TransferEngine engine) {
        this.options = options;
        this.engine = engine;
        this.memory = memory;
        region = engine.register(memory.memory());
    }

    public TransferEngine engine() {
        return engine;
    }

    public Region region() {
        return region;
    }

    public MemorySegment memory() {
        return memory.bytes();
    }

    /** Runs inside {@code onWindowFilled} and {@code onReadCompleted}, to check what is visible at that moment. */
    public void onFilled(Runnable action) {
        onFilled = action;
    }

    public ImmWindow openWindow(Admission from, WindowRanges ranges, long expectedWeight, long cookie) {
        return engine.openWindow(from, WindowArea.of(region.descriptor(), ranges), expectedWeight, cookie);
    }

    /** Submits, waiting out back pressure. */
    public void submit(Peer peer, TransferRequest request, long cookie) {
        await("room for request " + cookie, () -> {
            int result = engine.submit(peer, request, cookie);
            if (result != TransferEngine.ACCEPTED && result != TransferEngine.BACK_PRESSURE) {
                throw new AssertionError("submit returned " + result + ": " + engine.refusal());
            }
            return result == TransferEngine.ACCEPTED;
        });
    }

    /** Polls until the condition holds. */
    public void await(String what, BooleanSupplier condition) {
        awaitBoth(what, this, this, condition);
    }

    /** Polls two engines until the condition holds, which is evaluated once per round and may have effects. */
    public static void awaitBoth(String what, DrivenEngine first, DrivenEngine second, BooleanSupplier condition) {
        long beganNs = System.nanoTime();
        while (!condition.getAsBoolean()) {
            int polled = first.poll() + (second == first ? 0 : second.poll());
            if (second == first && first.companion != null) {
                first.companion.doWork();
            }
            if (System.nanoTime() - beganNs > AWAIT_LIMIT_NS) {
                throw new AssertionError("waited in vain for " + what + "; " + first + " / " + second);
            }
            if (polled == 0) {
                first.engine.await(first.needsCaller() || second.needsCaller() ? CYCLE_NS : LOOK_NS);
            }
        }
    }

    /** Hands out waiting completions. */
    public int poll() {
        return engine.poll(this, POLL_LIMIT);
    }

    private void doWork() {
        engine.await(1);
    }

    private boolean needsCaller() {
        return companion != null && companion.options.get(TransferOptions.THREADING) == ThreadingMode.CALLER;
    }

    /** Lets another engine make progress whenever this one waits; its completions are not handed out. */
    public void alongside(DrivenEngine other) {
        companion = other;
    }

    private void ended(long cookie) {
        endings.merge(cookie, 1, Integer::sum);
    }

    @Override
    public void onWriteCompleted(long cookie) {
        ended(cookie);
        completed.add(cookie);
    }

    @Override
    public void onWriteFailed(long cookie, TransferFault fault, String detail) {
        ended(cookie);
        failed.put(cookie, new Failure(fault, detail));
    }

    @Override
    public void onMemberFailed(long cookie, Peer member, TransferFault fault, String detail) {
        Failure earlier =
                failedMembers.computeIfAbsent(cookie, key -> new HashMap<>()).put(member, new Failure(fault, detail));
        if (earlier != null) {
            throw new AssertionError("member " + member.name() + " of request " + cookie + " failed twice");
        }
    }

    @Override
    public void onWindowFilled(long cookie) {
        filled.add(cookie);
        onFilled.run();
    }

    @Override
    public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
        overshot.put(cookie, new Overshoot(arrivedWeight, expectedWeight));
    }

    @Override
    public void onReadCompleted(long cookie) {
        ended(cookie);
        completed.add(cookie);
        onFilled.run();
    }

    @Override
    public void onReadFailed(long cookie, TransferFault fault, String detail) {
        ended(cookie);
        failed.put(cookie, new Failure(fault, detail));
    }

    @Override
    public void onReadWindowClosed(long cookie) {
        closedReadWindows.add(cookie);
    }

    @Override
    public void onPeerReady(Peer peer) {
        ready.add(peer);
    }

    @Override
    public void onPeerLost(Peer peer, TransferFault fault, String detail) {
        lost.put(peer.id(), new Failure(fault, detail));
    }

    @Override
    public void onAdmissionClosed(Admission admission, String detail) {
        closedAdmissions.put(admission.id(), detail);
    }

    @Override
    public void onWriteRefused(Admission admission, String detail) {
        refused.add(detail);
    }

    @Override
    public void onMessage(Admission from, MemorySegment message) {
        messages.add(message.toArray(ValueLayout.JAVA_BYTE));
    }

    @Override
    public String toString() {
        return "completed " + completed.size() + ", failed " + failed + ", filled " + filled + ", overshot " + overshot
                + ", lost " + lost + ", closed " + closedAdmissions + ", refused " + refused + ", " + engine.counters();
    }

    @Override
    public void close() {
        // The engine first: it must not touch memory that is gone.
        engine.close();
        memory.close();
    }
}
