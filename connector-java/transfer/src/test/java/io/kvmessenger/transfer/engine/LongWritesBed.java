package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.HostMemory;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.Region;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.ThreadingMode;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.function.BooleanSupplier;

/** One writer with several targets in this process: the test calls each of their duty cycles. */
final class LongWritesBed implements AutoCloseable {
    static final int TARGETS = 2;
    private static final int CYCLES_MAX = 200_000;

    final int regionBytes;
    private final TransferEngine writer;
    private final HostMemory source;
    private final Region from;
    final Events atWriter = new Events();
    final List<Target> targets = new ArrayList<>();
    private long cookies;

    LongWritesBed(String transport, int regionBytes, long seed) {
        this.regionBytes = regionBytes;
        writer = TransferEngines.open(options(transport));
        source = HostMemory.allocate("source", regionBytes);
        byte[] bytes = new byte[regionBytes];
        new Random(seed).nextBytes(bytes);
        source.memory().copyFrom(MemorySegment.ofArray(bytes));
        from = writer.register(source.shared());
        for (int i = 0; i < TARGETS; i++) {
            targets.add(new Target(transport));
        }
        until(() -> atWriter.ready == TARGETS);
        targets.forEach(Target::openWindow);
    }

    private static TransferOptions options(String transport) {
        return TransferOptions.defaults()
                .withTransports(transport)
                .with(TransferOptions.THREADING, ThreadingMode.CALLER);
    }

    /** One write of the source's bytes to the same place of a target; returns its cookie. */
    long write(Target target, long offsetBytes, long lengthBytes) {
        SingleWrite request =
                new SingleWrite(from, offsetBytes, target.to.descriptor(), offsetBytes, lengthBytes, target.remote, 1);
        if (writer.submit(target.peer, request, ++cookies) != TransferEngine.ACCEPTED) {
            throw new AssertionError("not accepted: " + writer.refusal());
        }
        return cookies;
    }

    void stepWriter() {
        writer.poll(atWriter, 64);
    }

    void step() {
        stepWriter();
        targets.forEach(Target::step);
    }

    void until(BooleanSupplier condition) {
        for (int i = 0; !condition.getAsBoolean(); i++) {
            if (i == CYCLES_MAX) {
                throw new AssertionError("not within " + CYCLES_MAX + " duty cycles; faults " + atWriter.faults);
            }
            step();
        }
    }

    void disconnect(Target target) {
        writer.disconnect(target.peer);
    }

    @Override
    public void close() {
        writer.close();
        targets.forEach(Target::close);
        source.close();
    }

    final class Target {
        private final TransferEngine engine;
        private final HostMemory memory = HostMemory.allocate("target", regionBytes);
        private final Region to;
        private final Admission admission;
        final Peer peer;
        final Events events = new Events();
        ImmWindow window;
        private RemoteWindow remote;
        private boolean ended;

        Target(String transport) {
            engine = TransferEngines.open(options(transport));
            to = engine.register(memory.shared());
            admission = engine.admit("writer");
            peer = writer.connect(engine.address(), admission.key(), "target");
        }

        private void openWindow() {
            WindowArea area = WindowArea.of(to.descriptor(), WindowRanges.ofEqual(new long[] {0}, regionBytes));
            window = engine.openWindow(admission, area, Long.MAX_VALUE, 1);
            remote = writer.allow(peer, window.imm(), area);
        }

        void step() {
            if (!ended) {
                engine.poll(events, 64);
            }
        }

        /** Whether a range has the source's bytes. */
        boolean has(long offsetBytes, long lengthBytes) {
            return memory.memory()
                            .asSlice(offsetBytes, lengthBytes)
                            .mismatch(source.memory().asSlice(offsetBytes, lengthBytes))
                    < 0;
        }

        /** Zeroes its memory. */
        void clear() {
            memory.memory().fill((byte) 0);
        }

        boolean isClear() {
            return memory.memory().mismatch(MemorySegment.ofArray(new byte[regionBytes])) < 0;
        }

        void end() {
            ended = true;
            engine.close();
        }

        private void close() {
            if (!ended) {
                engine.close();
            }
            memory.close();
        }
    }

    static final class Events implements CompletionHandler {
        final Set<Long> completed = new HashSet<>();
        final Set<Long> failed = new HashSet<>();
        final List<String> faults = new ArrayList<>();
        int ready;

        boolean hasEnded(long cookie) {
            return completed.contains(cookie) || failed.contains(cookie);
        }

        private void end(Set<Long> ends, long cookie) {
            if (completed.contains(cookie) || !ends.add(cookie)) {
                throw new AssertionError("write " + cookie + " ended twice");
            }
        }

        @Override
        public void onWriteCompleted(long cookie) {
            end(completed, cookie);
        }

        @Override
        public void onWriteFailed(long cookie, TransferFault fault, String detail) {
            end(failed, cookie);
        }

        @Override
        public void onWindowFilled(long cookie) {
            faults.add("filled");
        }

        @Override
        public void onWindowOvershot(long cookie, long arrivedWeight, long expectedWeight) {
            faults.add("overshot");
        }

        @Override
        public void onPeerReady(Peer peer) {
            ready++;
        }

        @Override
        public void onPeerLost(Peer peer, TransferFault fault, String detail) {
            faults.add(fault + " " + detail);
        }

        @Override
        public void onAdmissionClosed(Admission admission, String detail) {
            faults.add("closed " + detail);
        }

        @Override
        public void onWriteRefused(Admission admission, String detail) {
            faults.add("refused " + detail);
        }

        @Override
        public void onMessage(Admission from, MemorySegment message) {
            faults.add("message");
        }
    }
}
