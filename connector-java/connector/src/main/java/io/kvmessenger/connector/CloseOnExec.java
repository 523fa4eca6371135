package io.kvmessenger.connector;

import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import io.kvmessenger.foreign.SocketAddresses;
import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.agent.IdleThreads;
import java.io.File;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Keeps the JDK's sockets from child processes: the JDK opens them without close-on-exec, and a child that outlives
 * this process would keep its ports in use and its links open.
 *
 * <p>Any thread reports a local port; a daemon thread, which ends when idle, finds the sockets on it among the
 * process's descriptors and marks them. A child started just before still inherits them. Other descriptors are left as
 * they are.
 */
final class CloseOnExec implements AutoCloseable {
    private static final File DESCRIPTORS = new File("/proc/self/fd");

    private final LibC libC;
    private final Set<Integer> localPorts = ConcurrentHashMap.newKeySet();
    private final AtomicBoolean asked = new AtomicBoolean();
    private final ExecutorService sweeps = IdleThreads.queueing(1, "kv-messenger-exec-");

    CloseOnExec(LibC libC) {
        this.libC = libC;
    }

    /** A socket of this process has been opened on the port. */
    void opened(int localPort) {
        localPorts.add(localPort);
        if (asked.compareAndSet(false, true)) {
            try {
                sweeps.execute(this::sweep);
            } catch (RejectedExecutionException e) {
                asked.set(false); // closed, and so are the sockets
            }
        }
    }

    /** No socket of this process is on the port any more. */
    void closed(int localPort) {
        localPorts.remove(localPort);
    }

    private void sweep() {
        asked.set(false); // ports reported from here on need another search
        String[] descriptors = DESCRIPTORS.list();
        if (descriptors == null) {
            return;
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment address = arena.allocate(SocketAddresses.SIZE_MAX_BYTES, Long.BYTES);
            MemorySegment length = arena.allocate(ValueLayout.JAVA_INT);
            for (String descriptor : descriptors) {
                int fd = Integer.parseInt(descriptor);
                length.set(ValueLayout.JAVA_INT, 0, (int) SocketAddresses.SIZE_MAX_BYTES);
                if (libC.getsockname(fd, address, length) == 0 && ours(address)) {
                    libC.fcntl(fd, MemoryApi.F_SETFD, MemoryApi.FD_CLOEXEC);
                }
            }
        }
    }

    private boolean ours(MemorySegment address) {
        int family = address.get(ValueLayout.JAVA_SHORT, 0);
        return (family == SocketApi.AF_INET || family == SocketApi.AF_INET6)
                && localPorts.contains(SocketAddresses.port(address));
    }

    @Override
    public void close() {
        sweeps.shutdown();
    }
}
