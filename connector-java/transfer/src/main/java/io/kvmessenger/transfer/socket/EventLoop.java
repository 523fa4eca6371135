package io.kvmessenger.transfer.socket;

import io.kvmessenger.foreign.Epoll;
import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MemoryApi;
import io.kvmessenger.transfer.spi.Poller;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.function.LongSupplier;

/**
 * One epoll descriptor and one eventfd: notifies the owners of descriptors that became ready, and can be woken.
 *
 * <p>{@link #wake} and {@link #wakeDescriptor} from any thread, everything else by the worker.
 */
public final class EventLoop implements Poller {
    private static final int EVENTS_MAX = 64;
    private static final long WAKE = -1;

    private final Arena arena = Arena.ofShared();
    private final MemorySegment events = arena.allocate(EVENTS_MAX * Epoll.SIZE_BYTES, 8);
    private final MemorySegment change = arena.allocate(Epoll.SIZE_BYTES, 8);
    private final MemorySegment one = arena.allocateFrom(ValueLayout.JAVA_LONG, 1L);
    private final MemorySegment wakeCount = arena.allocate(ValueLayout.JAVA_LONG);
    private final LibC libC;
    private final SocketCalls sockets;
    private final Seals seals;
    private final int epoll;
    private final int wakeFd;
    private final LongSupplier clock;
    private long nowNs;
    private boolean closed;
    private Pollable[] owners = new Pollable[64];
    private int[] generations = new int[64];

    /** @param clock monotonic, in ns */
    public EventLoop(LibC libC, LongSupplier clock) {
        this(libC, Seals.NONE, clock);
    }

    /**
     * @param seals where the C library seals sockets
     * @param clock monotonic, in ns
     */
    public EventLoop(LibC libC, Seals seals, LongSupplier clock) {
        this.libC = libC;
        this.seals = seals;
        this.clock = clock;
        sockets = new SocketCalls(libC);
        nowNs = clock.getAsLong();
        epoll = libC.epoll_create1(Epoll.EPOLL_CLOEXEC);
        wakeFd = libC.eventfd(0, MemoryApi.EFD_CLOEXEC | MemoryApi.EFD_NONBLOCK);
        try {
            Errno.require("epoll_create1", epoll);
            Errno.require("eventfd", wakeFd);
            control(Epoll.EPOLL_CTL_ADD, wakeFd, Epoll.EPOLLIN, WAKE);
        } catch (RuntimeException e) {
            release();
            throw e;
        }
    }

    /**
     * Watches a descriptor; returns the key for {@link #change} and {@link #remove}.
     *
     * @throws IllegalStateException when the operating system refuses; the descriptor stays the caller's
     */
    public long add(int fd, int mask, Pollable owner) {
        int index = 0;
        while (index < owners.length && owners[index] != null) {
            index++;
        }
        if (index == owners.length) {
            owners = Arrays.copyOf(owners, index * 2);
            generations = Arrays.copyOf(generations, index * 2);
        }
        long key = ((long) ++generations[index] << 32) | index;
        control(Epoll.EPOLL_CTL_ADD, fd, mask, key);
        owners[index] = owner;
        return key;
    }

    public void change(long key, int fd, int mask) {
        control(Epoll.EPOLL_CTL_MOD, fd, mask, key);
    }

    /** Unregisters a descriptor, before it is closed; events already fetched for the owner are dropped. */
    public void remove(long key, int fd) {
        control(Epoll.EPOLL_CTL_DEL, fd, 0, key);
        owners[(int) key] = null;
    }

    public Seals seals() {
        return seals;
    }

    /** The C library for operations on this loop's descriptors. */
    public LibC libC() {
        return libC;
    }

    public SocketCalls sockets() {
        return sockets;
    }

    @Override
    public long nowNs() {
        return nowNs;
    }

    @Override
    public long tick() {
        nowNs = clock.getAsLong();
        return nowNs;
    }

    /**
     * Calls the owners of ready descriptors; waits for the first at most {@code timeoutMillis}. Returns how many owners
     * were called, plus one after a {@link #wake}, since that may signal something that the caller checked too early.
     * An exception of an owner ends that owner and does not leave this method.
     */
    @Override
    public int poll(int timeoutMillis) {
        int count = libC.epoll_wait(epoll, events, EVENTS_MAX, timeoutMillis);
        nowNs = clock.getAsLong();
        if (count == -Errno.EINTR) {
            return 0;
        }
        Errno.require("epoll_wait", count);
        int called = 0;
        for (int i = 0; i < count; i++) {
            long key = Epoll.data(events, i);
            if (key == WAKE) {
                libC.read(wakeFd, wakeCount, Long.BYTES);
                called++;
                continue;
            }
            int index = (int) key;
            if (owners[index] != null && generations[index] == (int) (key >>> 32)) {
                call(owners[index], Epoll.mask(events, i));
                called++;
            }
        }
        return called;
    }

    private void call(Pollable owner, int mask) {
        try {
            owner.onReady(mask, nowNs);
        } catch (RuntimeException | Error error) {
            owner.onError(error);
        }
    }

    @Override
    public synchronized void wake() {
        if (!closed) {
            libC.write(wakeFd, one, Long.BYTES);
        }
    }

    /** The eventfd; a write to it wakes the loop. */
    public int wakeDescriptor() {
        return wakeFd;
    }

    private void control(int operation, int fd, int mask, long key) {
        Epoll.set(change, 0, mask, key);
        Errno.require("epoll_ctl", libC.epoll_ctl(epoll, operation, fd, change));
    }

    /** Waits for a wake-up in progress, as its descriptor could be reused right after closing. */
    @Override
    public synchronized void close() {
        if (!closed) {
            closed = true;
            release();
        }
    }

    private void release() {
        if (wakeFd >= 0) {
            libC.close(wakeFd);
        }
        if (epoll >= 0) {
            libC.close(epoll);
        }
        arena.close();
    }
}
