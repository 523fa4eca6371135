package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.JAVA_INT_UNALIGNED;
import static java.lang.foreign.ValueLayout.JAVA_LONG_UNALIGNED;

import java.lang.foreign.MemorySegment;

/**
 * Constants of epoll and {@code struct epoll_event}, which is packed on x86_64 and nowhere else;
 * <a href="https://man7.org/linux/man-pages/man7/epoll.7.html">epoll(7)</a>.
 */
public final class Epoll {
    public static final int EPOLL_CTL_ADD = 1;
    public static final int EPOLL_CTL_DEL = 2;
    public static final int EPOLL_CTL_MOD = 3;
    public static final int EPOLLIN = 0x001;
    public static final int EPOLLOUT = 0x004;
    public static final int EPOLLERR = 0x008;
    public static final int EPOLLHUP = 0x010;
    public static final int EPOLLET = 1 << 31;
    public static final int EPOLL_CLOEXEC = 0x80000;

    private static final String ARCHITECTURE = System.getProperty("os.arch");
    public static final long EVENTS_OFFSET = 0;
    public static final long DATA_OFFSET = dataOffset(ARCHITECTURE);
    public static final long SIZE_BYTES = DATA_OFFSET + Long.BYTES;

    private Epoll() {}

    /** Offset of {@code data}: after the four bytes of {@code events}, aligned unless the structure is packed. */
    static long dataOffset(String architecture) {
        return architecture.equals("amd64") ? Integer.BYTES : Long.BYTES;
    }

    public static void set(MemorySegment events, int index, int mask, long data) {
        events.set(JAVA_INT_UNALIGNED, index * SIZE_BYTES + EVENTS_OFFSET, mask);
        events.set(JAVA_LONG_UNALIGNED, index * SIZE_BYTES + DATA_OFFSET, data);
    }

    public static int mask(MemorySegment events, int index) {
        return events.get(JAVA_INT_UNALIGNED, index * SIZE_BYTES + EVENTS_OFFSET);
    }

    public static long data(MemorySegment events, int index) {
        return events.get(JAVA_LONG_UNALIGNED, index * SIZE_BYTES + DATA_OFFSET);
    }
}
