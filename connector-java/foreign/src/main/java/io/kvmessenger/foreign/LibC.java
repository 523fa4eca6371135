package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.VarHandle;

/**
 * The C library: one method for each C function, under its C name. Linux on x86_64 and aarch64.
 *
 * <p>A method returns what C returns, except that a failure, {@code -1} in C, is returned as {@code -errno}; see
 * {@link Errno}. Safe from any thread. It checks no argument and has no opinion.
 */
public final class LibC {
    private static final Linker LINKER = Linker.nativeLinker();
    private static final Linker.Option ERRNO = Linker.Option.captureCallState("errno");
    private static final StructLayout CALL_STATE = Linker.Option.captureStateLayout();
    private static final VarHandle CALL_STATE_ERRNO =
            CALL_STATE.varHandle(MemoryLayout.PathElement.groupElement("errno"));
    private static final ThreadLocal<MemorySegment> STATE =
            ThreadLocal.withInitial(() -> Arena.ofAuto().allocate(CALL_STATE));

    private static final MethodHandle accept4 = handle("accept4", JAVA_INT, JAVA_INT, ADDRESS, ADDRESS, JAVA_INT);
    private static final MethodHandle bind = handle("bind", JAVA_INT, JAVA_INT, ADDRESS, JAVA_INT);
    private static final MethodHandle close = handle("close", JAVA_INT, JAVA_INT);
    private static final MethodHandle connect = handle("connect", JAVA_INT, JAVA_INT, ADDRESS, JAVA_INT);
    private static final MethodHandle epoll_create1 = handle("epoll_create1", JAVA_INT, JAVA_INT);
    private static final MethodHandle epoll_ctl = handle("epoll_ctl", JAVA_INT, JAVA_INT, JAVA_INT, JAVA_INT, ADDRESS);
    private static final MethodHandle epoll_wait =
            handle("epoll_wait", JAVA_INT, JAVA_INT, ADDRESS, JAVA_INT, JAVA_INT);
    private static final MethodHandle eventfd = handle("eventfd", JAVA_INT, JAVA_INT, JAVA_INT);
    private static final MethodHandle fcntl = variadic("fcntl", 2, JAVA_INT, JAVA_INT, JAVA_INT, JAVA_INT);
    private static final MethodHandle ftruncate = handle("ftruncate", JAVA_INT, JAVA_INT, JAVA_LONG);
    private static final MethodHandle getpid = handle("getpid", JAVA_INT);
    private static final MethodHandle getsockname = handle("getsockname", JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle getsockopt =
            handle("getsockopt", JAVA_INT, JAVA_INT, JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle getuid = handle("getuid", JAVA_INT);
    private static final MethodHandle listen = handle("listen", JAVA_INT, JAVA_INT, JAVA_INT);
    private static final MethodHandle lseek = handle("lseek", JAVA_LONG, JAVA_INT, JAVA_LONG, JAVA_INT);
    private static final MethodHandle madvise = handle("madvise", JAVA_INT, JAVA_LONG, JAVA_LONG, JAVA_INT);
    private static final MethodHandle memfd_create = handle("memfd_create", JAVA_INT, ADDRESS, JAVA_INT);
    private static final MethodHandle mmap =
            handle("mmap", JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, JAVA_INT, JAVA_LONG);
    private static final MethodHandle munmap = handle("munmap", JAVA_INT, JAVA_LONG, JAVA_LONG);
    private static final MethodHandle read = handle("read", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG);
    private static final MethodHandle readv = handle("readv", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_INT);
    private static final MethodHandle recvmsg = handle("recvmsg", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_INT);
    private static final MethodHandle send = handle("send", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG, JAVA_INT);
    private static final MethodHandle sendmsg = handle("sendmsg", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_INT);
    private static final MethodHandle setsockopt =
            handle("setsockopt", JAVA_INT, JAVA_INT, JAVA_INT, JAVA_INT, ADDRESS, JAVA_INT);
    private static final MethodHandle shutdown = handle("shutdown", JAVA_INT, JAVA_INT, JAVA_INT);
    private static final MethodHandle sigaction = handle("sigaction", JAVA_INT, JAVA_INT, ADDRESS, ADDRESS);
    private static final MethodHandle socket = handle("socket", JAVA_INT, JAVA_INT, JAVA_INT, JAVA_INT);
    private static final MethodHandle syscall = variadic("syscall", 1, JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG);
    private static final MethodHandle write = handle("write", JAVA_LONG, JAVA_INT, ADDRESS, JAVA_LONG);

    /** The same on x86_64 and aarch64; C libraries before glibc 2.36 have no function for it. */
    private static final long SYS_PIDFD_OPEN = 434;

    private LibC() {}

    /** <a href="https://man7.org/linux/man-pages/man2/accept4.2.html">accept4(2)</a>. */
    public static int accept4(int socket, MemorySegment address, MemorySegment addressLength, int flags) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) accept4.invokeExact(state, socket, address, addressLength, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/bind.2.html">bind(2)</a>. */
    public static int bind(int socket, MemorySegment address, int addressLength) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) bind.invokeExact(state, socket, address, addressLength);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/close.2.html">close(2)</a>. */
    public static int close(int fd) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) close.invokeExact(state, fd);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/connect.2.html">connect(2)</a>. */
    public static int connect(int socket, MemorySegment address, int addressLength) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) connect.invokeExact(state, socket, address, addressLength);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/epoll_create1.2.html">epoll_create1(2)</a>. */
    public static int epoll_create1(int flags) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) epoll_create1.invokeExact(state, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/epoll_ctl.2.html">epoll_ctl(2)</a>. */
    public static int epoll_ctl(int epoll, int operation, int fd, MemorySegment event) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) epoll_ctl.invokeExact(state, epoll, operation, fd, event);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/epoll_wait.2.html">epoll_wait(2)</a>. */
    public static int epoll_wait(int epoll, MemorySegment events, int eventsMax, int timeoutMillis) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) epoll_wait.invokeExact(state, epoll, events, eventsMax, timeoutMillis);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/eventfd.2.html">eventfd(2)</a>. */
    public static int eventfd(int initialValue, int flags) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) eventfd.invokeExact(state, initialValue, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/fcntl.2.html">fcntl(2)</a>. */
    public static int fcntl(int fd, int operation, int argument) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) fcntl.invokeExact(state, fd, operation, argument);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/ftruncate.2.html">ftruncate(2)</a>. */
    public static int ftruncate(int fd, long lengthBytes) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) ftruncate.invokeExact(state, fd, lengthBytes);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/getpid.2.html">getpid(2)</a>. */
    public static int getpid() {
        MemorySegment state = STATE.get();
        try {
            int result = (int) getpid.invokeExact(state);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/getsockname.2.html">getsockname(2)</a>. */
    public static int getsockname(int socket, MemorySegment address, MemorySegment addressLength) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) getsockname.invokeExact(state, socket, address, addressLength);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/getsockopt.2.html">getsockopt(2)</a>. */
    public static int getsockopt(int socket, int level, int name, MemorySegment value, MemorySegment valueLength) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) getsockopt.invokeExact(state, socket, level, name, value, valueLength);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/getuid.2.html">getuid(2)</a>. */
    public static int getuid() {
        MemorySegment state = STATE.get();
        try {
            int result = (int) getuid.invokeExact(state);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/listen.2.html">listen(2)</a>. */
    public static int listen(int socket, int backlog) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) listen.invokeExact(state, socket, backlog);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/lseek.2.html">lseek(2)</a>. */
    public static long lseek(int fd, long offsetBytes, int whence) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) lseek.invokeExact(state, fd, offsetBytes, whence);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/madvise.2.html">madvise(2)</a>. */
    public static int madvise(long address, long lengthBytes, int advice) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) madvise.invokeExact(state, address, lengthBytes, advice);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/memfd_create.2.html">memfd_create(2)</a>. */
    public static int memfd_create(MemorySegment name, int flags) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) memfd_create.invokeExact(state, name, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/mmap.2.html">mmap(2)</a>. */
    public static long mmap(long address, long lengthBytes, int protection, int flags, int fd, long offsetBytes) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) mmap.invokeExact(state, address, lengthBytes, protection, flags, fd, offsetBytes);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/munmap.2.html">munmap(2)</a>. */
    public static int munmap(long address, long lengthBytes) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) munmap.invokeExact(state, address, lengthBytes);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/pidfd_open.2.html">pidfd_open(2)</a>, without flags. */
    public static int pidfd_open(int pid) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) syscall.invokeExact(state, SYS_PIDFD_OPEN, (long) pid, 0L);
            return result == -1 ? -errno(state) : (int) result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/read.2.html">read(2)</a>. */
    public static long read(int fd, MemorySegment buffer, long lengthBytes) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) read.invokeExact(state, fd, buffer, lengthBytes);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/readv.2.html">readv(2)</a>. */
    public static long readv(int fd, MemorySegment vectors, int vectorCount) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) readv.invokeExact(state, fd, vectors, vectorCount);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/recvmsg.2.html">recvmsg(2)</a>. */
    public static long recvmsg(int socket, MemorySegment message, int flags) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) recvmsg.invokeExact(state, socket, message, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/send.2.html">send(2)</a>. */
    public static long send(int socket, MemorySegment buffer, long lengthBytes, int flags) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) send.invokeExact(state, socket, buffer, lengthBytes, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/sendmsg.2.html">sendmsg(2)</a>. */
    public static long sendmsg(int socket, MemorySegment message, int flags) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) sendmsg.invokeExact(state, socket, message, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/setsockopt.2.html">setsockopt(2)</a>. */
    public static int setsockopt(int socket, int level, int name, MemorySegment value, int valueLength) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) setsockopt.invokeExact(state, socket, level, name, value, valueLength);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/shutdown.2.html">shutdown(2)</a>. */
    public static int shutdown(int socket, int how) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) shutdown.invokeExact(state, socket, how);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/sigaction.2.html">sigaction(2)</a>. */
    public static int sigaction(int signal, MemorySegment action, MemorySegment oldAction) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) sigaction.invokeExact(state, signal, action, oldAction);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/socket.2.html">socket(2)</a>. */
    public static int socket(int domain, int type, int protocol) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) socket.invokeExact(state, domain, type, protocol);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** <a href="https://man7.org/linux/man-pages/man2/write.2.html">write(2)</a>. */
    public static long write(int fd, MemorySegment buffer, long lengthBytes) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) write.invokeExact(state, fd, buffer, lengthBytes);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    private static int errno(MemorySegment state) {
        return (int) CALL_STATE_ERRNO.get(state, 0L);
    }

    private static AssertionError unexpected(Throwable t) {
        return new AssertionError("a downcall does not throw", t);
    }

    private static MethodHandle handle(String name, MemoryLayout result, MemoryLayout... arguments) {
        return link(name, FunctionDescriptor.of(result, arguments), ERRNO);
    }

    private static MethodHandle variadic(String name, int fixedCount, MemoryLayout result, MemoryLayout... arguments) {
        return link(name, FunctionDescriptor.of(result, arguments), ERRNO, Linker.Option.firstVariadicArg(fixedCount));
    }

    @SuppressWarnings("restricted")
    private static MethodHandle link(String name, FunctionDescriptor descriptor, Linker.Option... options) {
        MemorySegment symbol = LINKER.defaultLookup()
                .find(name)
                .orElseThrow(() -> new UnsatisfiedLinkError("libc has no function " + name));
        return LINKER.downcallHandle(symbol, descriptor, options);
    }
}
