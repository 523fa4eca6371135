package io.kvmessenger.transfer.socket;

import io.kvmessenger.foreign.LibC;
import java.lang.foreign.MemorySegment;

/** Forwards every call to another C library; subclasses override some. Threading as that library. */
abstract class ForwardingLibC implements LibC {
    private final LibC libC;

    ForwardingLibC(LibC libC) {
        this.libC = libC;
    }

    @Override
    public int accept4(int socket, MemorySegment address, MemorySegment addressLength, int flags) {
        return libC.accept4(socket, address, addressLength, flags);
    }

    @Override
    public int bind(int socket, MemorySegment address, int addressLength) {
        return libC.bind(socket, address, addressLength);
    }

    @Override
    public int close(int fd) {
        return libC.close(fd);
    }

    @Override
    public int connect(int socket, MemorySegment address, int addressLength) {
        return libC.connect(socket, address, addressLength);
    }

    @Override
    public int epoll_create1(int flags) {
        return libC.epoll_create1(flags);
    }

    @Override
    public int epoll_ctl(int epoll, int operation, int fd, MemorySegment event) {
        return libC.epoll_ctl(epoll, operation, fd, event);
    }

    @Override
    public int epoll_wait(int epoll, MemorySegment events, int eventsMax, int timeoutMillis) {
        return libC.epoll_wait(epoll, events, eventsMax, timeoutMillis);
    }

    @Override
    public int eventfd(int initialValue, int flags) {
        return libC.eventfd(initialValue, flags);
    }

    @Override
    public int fcntl(int fd, int operation, int argument) {
        return libC.fcntl(fd, operation, argument);
    }

    @Override
    public int ftruncate(int fd, long lengthBytes) {
        return libC.ftruncate(fd, lengthBytes);
    }

    @Override
    public int getpid() {
        return libC.getpid();
    }

    @Override
    public int getsockname(int socket, MemorySegment address, MemorySegment addressLength) {
        return libC.getsockname(socket, address, addressLength);
    }

    @Override
    public int getsockopt(int socket, int level, int name, MemorySegment value, MemorySegment valueLength) {
        return libC.getsockopt(socket, level, name, value, valueLength);
    }

    @Override
    public int getuid() {
        return libC.getuid();
    }

    @Override
    public int ioctl(int fd, long request, MemorySegment argument) {
        return libC.ioctl(fd, request, argument);
    }

    @Override
    public int listen(int socket, int backlog) {
        return libC.listen(socket, backlog);
    }

    @Override
    public long lseek(int fd, long offsetBytes, int whence) {
        return libC.lseek(fd, offsetBytes, whence);
    }

    @Override
    public int madvise(long address, long lengthBytes, int advice) {
        return libC.madvise(address, lengthBytes, advice);
    }

    @Override
    public int memfd_create(MemorySegment name, int flags) {
        return libC.memfd_create(name, flags);
    }

    @Override
    public long mmap(long address, long lengthBytes, int protection, int flags, int fd, long offsetBytes) {
        return libC.mmap(address, lengthBytes, protection, flags, fd, offsetBytes);
    }

    @Override
    public int mincore(long address, long lengthBytes, MemorySegment residency) {
        return libC.mincore(address, lengthBytes, residency);
    }

    @Override
    public int mprotect(long address, long lengthBytes, int protection) {
        return libC.mprotect(address, lengthBytes, protection);
    }

    @Override
    public int munmap(long address, long lengthBytes) {
        return libC.munmap(address, lengthBytes);
    }

    @Override
    public int pidfd_open(int pid) {
        return libC.pidfd_open(pid);
    }

    @Override
    public long read(int fd, MemorySegment buffer, long lengthBytes) {
        return libC.read(fd, buffer, lengthBytes);
    }

    @Override
    public long readv(int fd, MemorySegment vectors, int vectorCount) {
        return libC.readv(fd, vectors, vectorCount);
    }

    @Override
    public long recvmsg(int socket, MemorySegment message, int flags) {
        return libC.recvmsg(socket, message, flags);
    }

    @Override
    public long send(int socket, MemorySegment buffer, long lengthBytes, int flags) {
        return libC.send(socket, buffer, lengthBytes, flags);
    }

    @Override
    public long sendmsg(int socket, MemorySegment message, int flags) {
        return libC.sendmsg(socket, message, flags);
    }

    @Override
    public int setsockopt(int socket, int level, int name, MemorySegment value, int valueLength) {
        return libC.setsockopt(socket, level, name, value, valueLength);
    }

    @Override
    public int shutdown(int socket, int how) {
        return libC.shutdown(socket, how);
    }

    @Override
    public int sigaction(int signal, MemorySegment action, MemorySegment oldAction) {
        return libC.sigaction(signal, action, oldAction);
    }

    @Override
    public int socket(int domain, int type, int protocol) {
        return libC.socket(domain, type, protocol);
    }

    @Override
    public long write(int fd, MemorySegment buffer, long lengthBytes) {
        return libC.write(fd, buffer, lengthBytes);
    }
}
