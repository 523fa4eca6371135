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
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.invoke.VarHandle;

/**
 * The C library of this process, by downcalls.
 *
 * <p>Safe from any thread; instances share all state. A function that the library lacks fails only when it is called,
 * with an {@link UnsatisfiedLinkError} that names it.
 */
public final class FfmLibC implements LibC {
    private static final Linker LINKER = Linker.nativeLinker();
    static final Linker.Option ERRNO = Linker.Option.captureCallState("errno");
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
    private static final MethodHandle ioctl = variadic("ioctl", 2, JAVA_INT, JAVA_INT, JAVA_LONG, ADDRESS);
    private static final MethodHandle listen = handle("listen", JAVA_INT, JAVA_INT, JAVA_INT);
    private static final MethodHandle lseek = handle("lseek", JAVA_LONG, JAVA_INT, JAVA_LONG, JAVA_INT);
    private static final MethodHandle madvise = handle("madvise", JAVA_INT, JAVA_LONG, JAVA_LONG, JAVA_INT);
    private static final MethodHandle memfd_create = handle("memfd_create", JAVA_INT, ADDRESS, JAVA_INT);
    private static final MethodHandle mincore = handle("mincore", JAVA_INT, JAVA_LONG, JAVA_LONG, ADDRESS);
    private static final MethodHandle mmap =
            handle("mmap", JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, JAVA_INT, JAVA_LONG);
    private static final MethodHandle mprotect = handle("mprotect", JAVA_INT, JAVA_LONG, JAVA_LONG, JAVA_INT);
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

    /** The same on x86_64 and aarch64; C libraries before glibc 2.36 have no wrapper for it. */
    private static final long SYS_PIDFD_OPEN = 434;

    @Override
    public int accept4(int socket, MemorySegment address, MemorySegment addressLength, int flags) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) accept4.invokeExact(state, socket, address, addressLength, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int bind(int socket, MemorySegment address, int addressLength) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) bind.invokeExact(state, socket, address, addressLength);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int close(int fd) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) close.invokeExact(state, fd);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int connect(int socket, MemorySegment address, int addressLength) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) connect.invokeExact(state, socket, address, addressLength);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int epoll_create1(int flags) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) epoll_create1.invokeExact(state, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int epoll_ctl(int epoll, int operation, int fd, MemorySegment event) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) epoll_ctl.invokeExact(state, epoll, operation, fd, event);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int epoll_wait(int epoll, MemorySegment events, int eventsMax, int timeoutMillis) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) epoll_wait.invokeExact(state, epoll, events, eventsMax, timeoutMillis);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int eventfd(int initialValue, int flags) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) eventfd.invokeExact(state, initialValue, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int fcntl(int fd, int operation, int argument) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) fcntl.invokeExact(state, fd, operation, argument);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int ftruncate(int fd, long lengthBytes) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) ftruncate.invokeExact(state, fd, lengthBytes);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int getpid() {
        MemorySegment state = STATE.get();
        try {
            int result = (int) getpid.invokeExact(state);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int getsockname(int socket, MemorySegment address, MemorySegment addressLength) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) getsockname.invokeExact(state, socket, address, addressLength);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int getsockopt(int socket, int level, int name, MemorySegment value, MemorySegment valueLength) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) getsockopt.invokeExact(state, socket, level, name, value, valueLength);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int getuid() {
        MemorySegment state = STATE.get();
        try {
            int result = (int) getuid.invokeExact(state);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int ioctl(int fd, long request, MemorySegment argument) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) ioctl.invokeExact(state, fd, request, argument);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int listen(int socket, int backlog) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) listen.invokeExact(state, socket, backlog);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public long lseek(int fd, long offsetBytes, int whence) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) lseek.invokeExact(state, fd, offsetBytes, whence);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int madvise(long address, long lengthBytes, int advice) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) madvise.invokeExact(state, address, lengthBytes, advice);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int memfd_create(MemorySegment name, int flags) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) memfd_create.invokeExact(state, name, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int mincore(long address, long lengthBytes, MemorySegment residency) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) mincore.invokeExact(state, address, lengthBytes, residency);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public long mmap(long address, long lengthBytes, int protection, int flags, int fd, long offsetBytes) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) mmap.invokeExact(state, address, lengthBytes, protection, flags, fd, offsetBytes);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int mprotect(long address, long lengthBytes, int protection) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) mprotect.invokeExact(state, address, lengthBytes, protection);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int munmap(long address, long lengthBytes) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) munmap.invokeExact(state, address, lengthBytes);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int pidfd_open(int pid) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) syscall.invokeExact(state, SYS_PIDFD_OPEN, (long) pid, 0L);
            return result == -1 ? -errno(state) : (int) result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public long read(int fd, MemorySegment buffer, long lengthBytes) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) read.invokeExact(state, fd, buffer, lengthBytes);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public long readv(int fd, MemorySegment vectors, int vectorCount) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) readv.invokeExact(state, fd, vectors, vectorCount);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public long recvmsg(int socket, MemorySegment message, int flags) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) recvmsg.invokeExact(state, socket, message, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public long send(int socket, MemorySegment buffer, long lengthBytes, int flags) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) send.invokeExact(state, socket, buffer, lengthBytes, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public long sendmsg(int socket, MemorySegment message, int flags) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) sendmsg.invokeExact(state, socket, message, flags);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int setsockopt(int socket, int level, int name, MemorySegment value, int valueLength) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) setsockopt.invokeExact(state, socket, level, name, value, valueLength);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int shutdown(int socket, int how) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) shutdown.invokeExact(state, socket, how);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int sigaction(int signal, MemorySegment action, MemorySegment oldAction) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) sigaction.invokeExact(state, signal, action, oldAction);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public int socket(int domain, int type, int protocol) {
        MemorySegment state = STATE.get();
        try {
            int result = (int) socket.invokeExact(state, domain, type, protocol);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    @Override
    public long write(int fd, MemorySegment buffer, long lengthBytes) {
        MemorySegment state = STATE.get();
        try {
            long result = (long) write.invokeExact(state, fd, buffer, lengthBytes);
            return result == -1 ? -errno(state) : result;
        } catch (Throwable t) {
            throw unexpected(t);
        }
    }

    /** This thread's capture of errno, for calls that report errors by it. */
    static MemorySegment callState() {
        return STATE.get();
    }

    static int errno(MemorySegment state) {
        return (int) CALL_STATE_ERRNO.get(state, 0L);
    }

    static Error unexpected(Throwable t) {
        return t instanceof UnsatisfiedLinkError
                ? new UnsatisfiedLinkError(t.getMessage()) // with the caller's stack
                : new AssertionError("a downcall does not throw", t);
    }

    static MethodHandle handle(String name, MemoryLayout result, MemoryLayout... arguments) {
        return link(name, FunctionDescriptor.of(result, arguments), ERRNO);
    }

    private static MethodHandle variadic(String name, int fixedCount, MemoryLayout result, MemoryLayout... arguments) {
        return link(name, FunctionDescriptor.of(result, arguments), ERRNO, Linker.Option.firstVariadicArg(fixedCount));
    }

    @SuppressWarnings("restricted")
    private static MethodHandle link(String name, FunctionDescriptor descriptor, Linker.Option... options) {
        return LINKER.defaultLookup()
                .find(name)
                .map(symbol -> LINKER.downcallHandle(symbol, descriptor, options))
                .orElseGet(() -> absent(
                        name, LINKER.downcallHandle(descriptor, options).type().dropParameterTypes(0, 1)));
    }

    /** A stand-in that throws for a function that the library lacks. */
    private static MethodHandle absent(String name, MethodType type) {
        MethodHandle thrower = MethodHandles.throwException(type.returnType(), UnsatisfiedLinkError.class)
                .bindTo(new UnsatisfiedLinkError("the C library has no function " + name));
        return MethodHandles.dropArguments(thrower, 0, type.parameterList());
    }
}
