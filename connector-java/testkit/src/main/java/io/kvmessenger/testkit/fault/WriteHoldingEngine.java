package io.kvmessenger.testkit.fault;

import io.kvmessenger.transfer.CompletionHandler;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import io.kvmessenger.transfer.TransferRequest.SingleWrite;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.HashSet;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.function.Predicate;

/**
 * A fault for tests: while a file exists, only as many writes leave as it allows; the others are accepted and held back
 * until the file is gone. So a test can stop or kill an engine at a chosen step of a transfer.
 *
 * <p>Threading as the wrapped engine. Held writes leave when the engine is polled, at the latest with the next
 * heartbeat.
 */
final class WriteHoldingEngine extends PassingTransferEngine {
    private record Held(Peer peer, TransferRequest request, long cookie) {}

    private static final long NO_FILE = 0;

    private final Path file;
    private final Queue<Held> held = new ArrayDeque<>();
    /** Peers whose held writes fail; the wrapped engine never saw these writes. */
    private final Set<Peer> disconnected = new HashSet<>();
    /** Modification time of the file that {@link #mayLeaveCount} was read from: another file restarts the count. */
    private long fileWrittenMillis = NO_FILE;

    private int mayLeaveCount;

    WriteHoldingEngine(TransferEngine engine, Path file) {
        super(engine);
        this.file = file;
    }

    @Override
    public int submit(Peer peer, TransferRequest request, long cookie) {
        boolean hasBytes = request instanceof PagedWrites || request instanceof SingleWrite;
        if (!hasBytes || (held.isEmpty() && mayLeave())) {
            return super.submit(peer, request, cookie);
        }
        held.add(new Held(peer, request, cookie));
        return ACCEPTED;
    }

    @Override
    public void disconnect(Peer peer) {
        disconnected.add(peer);
        super.disconnect(peer);
    }

    @Override
    public int poll(CompletionHandler handler, int limit) {
        int failedCount = letGo(handler);
        return failedCount + super.poll(new LossNotingHandler(handler), limit);
    }

    /** Submits held writes once the file is gone, and fails those of lost peers; returns how many failed. */
    private int letGo(CompletionHandler handler) {
        int failedCount = failHeldFor(disconnected::contains, handler);
        while (!held.isEmpty() && !Files.exists(file)) {
            Held next = held.peek();
            int result = super.submit(next.peer, next.request, next.cookie);
            if (result == BACK_PRESSURE) {
                break;
            }
            held.remove();
            if (result != ACCEPTED) {
                fail(next, handler);
                failedCount++;
            }
        }
        return failedCount;
    }

    private int failHeldFor(Predicate<Peer> gone, CompletionHandler handler) {
        List<Held> lost = held.stream().filter(write -> gone.test(write.peer)).toList();
        held.removeAll(lost);
        lost.forEach(write -> fail(write, handler));
        return lost.size();
    }

    private static void fail(Held write, CompletionHandler handler) {
        handler.onWriteFailed(write.cookie, TransferFault.DISCONNECTED, "held back until its peer was lost");
    }

    /** The wrapped engine fails its writes to a lost peer before it reports the loss, but not those held here. */
    private final class LossNotingHandler extends PassingHandler {
        private final CompletionHandler handler;

        LossNotingHandler(CompletionHandler handler) {
            super(handler);
            this.handler = handler;
        }

        @Override
        public void onPeerLost(Peer peer, TransferFault fault, String detail) {
            failHeldFor(peer::equals, handler);
            super.onPeerLost(peer, fault, detail);
        }
    }

    private boolean mayLeave() {
        long writtenMillis = file.toFile().lastModified(); // 0 when there is none
        if (writtenMillis == NO_FILE) {
            return true;
        }
        if (writtenMillis != fileWrittenMillis) {
            fileWrittenMillis = writtenMillis;
            mayLeaveCount = readCount();
        }
        return mayLeaveCount-- > 0;
    }

    private int readCount() {
        try {
            return Integer.parseInt(Files.readString(file).strip());
        } catch (IOException | NumberFormatException e) {
            throw new IllegalStateException(
                    HeldWrites.FILE_PROPERTY + " names " + file + ", which holds no number of writes", e);
        }
    }
}
