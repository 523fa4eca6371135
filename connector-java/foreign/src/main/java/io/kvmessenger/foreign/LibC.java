package io.kvmessenger.foreign;

import io.kvmessenger.bindings.C;
import io.kvmessenger.bindings.NativeLibrary;
import java.lang.foreign.MemorySegment;

/**
 * The C library: one method for each C function, under its C name. Linux on x86_64 and aarch64.
 *
 * <p>A method returns what C returns, except that a failure, {@code -1} in C, is returned as {@code -errno}; see
 * {@link Errno}. Safe from any thread. Arguments are not checked. A
 * function that the library lacks fails only when it is called, with an {@link UnsatisfiedLinkError} that names it.
 */
@NativeLibrary(failures = NativeLibrary.Failures.ERRNO, forwarded = true)
public interface LibC {
    /** <a href="https://man7.org/linux/man-pages/man2/accept4.2.html">accept4(2)</a>. */
    int accept4(int socket, MemorySegment address, MemorySegment addressLength, int flags);

    /** <a href="https://man7.org/linux/man-pages/man2/bind.2.html">bind(2)</a>. */
    int bind(int socket, MemorySegment address, int addressLength);

    /** <a href="https://man7.org/linux/man-pages/man2/close.2.html">close(2)</a>. */
    int close(int fd);

    /** <a href="https://man7.org/linux/man-pages/man2/connect.2.html">connect(2)</a>. */
    int connect(int socket, MemorySegment address, int addressLength);

    /** <a href="https://man7.org/linux/man-pages/man2/epoll_create1.2.html">epoll_create1(2)</a>. */
    int epoll_create1(int flags);

    /** <a href="https://man7.org/linux/man-pages/man2/epoll_ctl.2.html">epoll_ctl(2)</a>. */
    int epoll_ctl(int epoll, int operation, int fd, MemorySegment event);

    /** <a href="https://man7.org/linux/man-pages/man2/epoll_wait.2.html">epoll_wait(2)</a>. */
    int epoll_wait(int epoll, MemorySegment events, int eventsMax, int timeoutMillis);

    /** <a href="https://man7.org/linux/man-pages/man2/eventfd.2.html">eventfd(2)</a>. */
    int eventfd(int initialValue, int flags);

    /** <a href="https://man7.org/linux/man-pages/man2/fcntl.2.html">fcntl(2)</a>. */
    @C(variadicAfter = 2)
    int fcntl(int fd, int operation, int argument);

    /** <a href="https://man7.org/linux/man-pages/man2/ftruncate.2.html">ftruncate(2)</a>. */
    int ftruncate(int fd, long lengthBytes);

    /** <a href="https://man7.org/linux/man-pages/man2/getpid.2.html">getpid(2)</a>. */
    int getpid();

    /** <a href="https://man7.org/linux/man-pages/man2/getsockname.2.html">getsockname(2)</a>. */
    int getsockname(int socket, MemorySegment address, MemorySegment addressLength);

    /** <a href="https://man7.org/linux/man-pages/man2/getsockopt.2.html">getsockopt(2)</a>. */
    int getsockopt(int socket, int level, int name, MemorySegment value, MemorySegment valueLength);

    /** <a href="https://man7.org/linux/man-pages/man2/getuid.2.html">getuid(2)</a>. */
    int getuid();

    /** <a href="https://man7.org/linux/man-pages/man2/ioctl.2.html">ioctl(2)</a>. */
    @C(variadicAfter = 2)
    int ioctl(int fd, long request, MemorySegment argument);

    /** <a href="https://man7.org/linux/man-pages/man2/listen.2.html">listen(2)</a>. */
    int listen(int socket, int backlog);

    /** <a href="https://man7.org/linux/man-pages/man2/lseek.2.html">lseek(2)</a>. */
    long lseek(int fd, long offsetBytes, int whence);

    /** <a href="https://man7.org/linux/man-pages/man2/madvise.2.html">madvise(2)</a>. */
    int madvise(long address, long lengthBytes, int advice);

    /** <a href="https://man7.org/linux/man-pages/man2/memfd_create.2.html">memfd_create(2)</a>. */
    int memfd_create(MemorySegment name, int flags);

    /** <a href="https://man7.org/linux/man-pages/man2/mincore.2.html">mincore(2)</a>. */
    int mincore(long address, long lengthBytes, MemorySegment residency);

    /** <a href="https://man7.org/linux/man-pages/man2/mmap.2.html">mmap(2)</a>. */
    long mmap(long address, long lengthBytes, int protection, int flags, int fd, long offsetBytes);

    /** <a href="https://man7.org/linux/man-pages/man2/mprotect.2.html">mprotect(2)</a>. */
    int mprotect(long address, long lengthBytes, int protection);

    /** <a href="https://man7.org/linux/man-pages/man2/munmap.2.html">munmap(2)</a>. */
    int munmap(long address, long lengthBytes);

    /**
     * <a href="https://man7.org/linux/man-pages/man2/pidfd_open.2.html">pidfd_open(2)</a>, without flags: C
     * libraries before glibc 2.36 have no function for it. The number of the system call is the same on x86_64 and aarch64.
     */
    @C(value = "long syscall(434L, (long) pid, 0L)", variadicAfter = 1)
    int pidfd_open(int pid);

    /** <a href="https://man7.org/linux/man-pages/man2/read.2.html">read(2)</a>. */
    long read(int fd, MemorySegment buffer, long lengthBytes);

    /** <a href="https://man7.org/linux/man-pages/man2/readv.2.html">readv(2)</a>. */
    long readv(int fd, MemorySegment vectors, int vectorCount);

    /** <a href="https://man7.org/linux/man-pages/man2/recvmsg.2.html">recvmsg(2)</a>. */
    long recvmsg(int socket, MemorySegment message, int flags);

    /** <a href="https://man7.org/linux/man-pages/man2/send.2.html">send(2)</a>. */
    long send(int socket, MemorySegment buffer, long lengthBytes, int flags);

    /** <a href="https://man7.org/linux/man-pages/man2/sendmsg.2.html">sendmsg(2)</a>. */
    long sendmsg(int socket, MemorySegment message, int flags);

    /** <a href="https://man7.org/linux/man-pages/man2/setsockopt.2.html">setsockopt(2)</a>. */
    int setsockopt(int socket, int level, int name, MemorySegment value, int valueLength);

    /** <a href="https://man7.org/linux/man-pages/man2/shutdown.2.html">shutdown(2)</a>. */
    int shutdown(int socket, int how);

    /** <a href="https://man7.org/linux/man-pages/man2/sigaction.2.html">sigaction(2)</a>. */
    int sigaction(int signal, MemorySegment action, MemorySegment oldAction);

    /** <a href="https://man7.org/linux/man-pages/man2/socket.2.html">socket(2)</a>. */
    int socket(int domain, int type, int protocol);

    /** <a href="https://man7.org/linux/man-pages/man2/write.2.html">write(2)</a>. */
    long write(int fd, MemorySegment buffer, long lengthBytes);
}
