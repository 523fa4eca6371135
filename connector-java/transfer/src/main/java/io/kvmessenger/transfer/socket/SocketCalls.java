package io.kvmessenger.transfer.socket;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.IoVector;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MessageHeader;
import io.kvmessenger.foreign.SocketAddresses;
import io.kvmessenger.foreign.SocketApi;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;

/** Opens non-blocking sockets. Any thread; allocates, so not for the data path. */
public final class SocketCalls {
    /** Room for all peers that arrive while the worker is busy elsewhere; the kernel's own limit may be lower. */
    private static final int BACKLOG = 1024;

    private static final long NS_PER_SECOND = 1_000_000_000L;
    private static final int FLAGS = SocketApi.SOCK_STREAM | SocketApi.SOCK_NONBLOCK | SocketApi.SOCK_CLOEXEC;

    private final LibC libC;

    public SocketCalls(LibC libC) {
        this.libC = libC;
    }

    /**
     * A listening socket.
     *
     * @param option name of the option that gives the host
     * @param port 0 for any free port
     * @throws IllegalArgumentException when listening there is impossible
     */
    public int listenInet(String option, InetAddress host, int port) {
        int fd = (int) Errno.require("socket", libC.socket(SocketAddresses.family(host), FLAGS, 0));
        // A fixed port is listened on again although sockets of the last process linger.
        setInt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_REUSEADDR, 1);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment address = arena.allocate(SocketAddresses.SIZE_MAX_BYTES, 8);
            int bound = libC.bind(fd, address, SocketAddresses.setInet(address, host, port));
            if (bound < 0) {
                libC.close(fd);
                throw new IllegalArgumentException(unlistenable(option, host, port, Errno.name(-bound)));
            }
        }
        return listening(fd);
    }

    /**
     * Names the network interface that a connected socket's bytes leave by, by this end's address; "" for loopback,
     * where there is none, and where the operating system does not say.
     */
    public String linkOf(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment address = arena.allocate(SocketAddresses.SIZE_MAX_BYTES, 8);
            if (nameOf(fd, address, arena) < 0) {
                return "";
            }
            InetAddress own = SocketAddresses.host(address);
            return own == null || own.isLoopbackAddress() ? "" : own.getHostAddress();
        }
    }

    public int listenAbstract(String name) {
        int fd = (int) Errno.require("socket", libC.socket(SocketApi.AF_UNIX, FLAGS, 0));
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment address = arena.allocate(SocketAddresses.SIZE_MAX_BYTES, 8);
            int bound = libC.bind(fd, address, SocketAddresses.setAbstract(address, name));
            if (bound < 0) {
                libC.close(fd);
            }
            Errno.require("bind", bound);
        }
        return listening(fd);
    }

    private static String unlistenable(String option, InetAddress host, int port, String errno) {
        String at = "option " + option + " is " + host.getHostAddress();
        return port == 0
                ? at + ", which this machine cannot listen on (" + errno + "); name one of its own addresses"
                : "option data_port is " + port + " and " + at + ", where this process cannot listen (" + errno
                        + "); choose a free port above 1023, or 0 for any, and an address of this machine";
    }

    private int listening(int fd) {
        int result = libC.listen(fd, BACKLOG);
        if (result < 0) {
            libC.close(fd);
        }
        Errno.require("listen", result);
        return fd;
    }

    public int port(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment address = arena.allocate(SocketAddresses.SIZE_MAX_BYTES, 8);
            Errno.require("getsockname", nameOf(fd, address, arena));
            return SocketAddresses.port(address);
        }
    }

    /** Writes the address of this end; returns {@code -errno} on failure. */
    private int nameOf(int fd, MemorySegment address, Arena arena) {
        return libC.getsockname(
                fd, address, arena.allocateFrom(ValueLayout.JAVA_INT, (int) SocketAddresses.SIZE_MAX_BYTES));
    }

    /** Starts to connect; returns the descriptor, or {@code -errno}. */
    public int connectInet(InetAddress host, int port) {
        return connectInet(null, host, port);
    }

    /**
     * The same.
     *
     * @param from local address to connect from; null to let routing choose
     */
    public int connectInet(InetAddress from, InetAddress host, int port) {
        int fd = libC.socket(SocketAddresses.family(host), FLAGS, 0);
        if (fd < 0) {
            return fd;
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment address = arena.allocate(SocketAddresses.SIZE_MAX_BYTES, 8);
            if (from != null) {
                // The port is chosen by connect, so that one port may serve connections to many targets.
                setInt(fd, SocketApi.IPPROTO_IP, SocketApi.IP_BIND_ADDRESS_NO_PORT, 1);
                int bound = libC.bind(fd, address, SocketAddresses.setInet(address, from, 0));
                if (bound < 0) {
                    libC.close(fd);
                    return bound;
                }
            }
            return connected(fd, libC.connect(fd, address, SocketAddresses.setInet(address, host, port)));
        }
    }

    /** Connects to a name in the abstract namespace; returns the descriptor, or {@code -errno}. */
    public int connectAbstract(String name) {
        int fd = libC.socket(SocketApi.AF_UNIX, FLAGS, 0);
        if (fd < 0) {
            return fd;
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment address = arena.allocate(SocketAddresses.SIZE_MAX_BYTES, 8);
            return connected(fd, libC.connect(fd, address, SocketAddresses.setAbstract(address, name)));
        }
    }

    private int connected(int fd, int result) {
        if (result < 0 && result != -Errno.EINPROGRESS) {
            libC.close(fd);
            return result;
        }
        return fd;
    }

    /** Disables Nagle: small frames must not wait for the acknowledgement of earlier ones. */
    public void setNoDelay(int fd) {
        setInt(fd, SocketApi.IPPROTO_TCP, SocketApi.TCP_NODELAY, 1);
    }

    /**
     * Lets the kernel probe an idle connection, which keeps the state of firewalls on the way alive, and end it when
     * nothing answers. It says that a machine is there, not that a process is. TCP_USER_TIMEOUT is left alone: it would
     * also end connections whose peer answers but has no room.
     *
     * @param idleLimitNs about how long it takes to find the end of an idle connection; at least some seconds
     */
    public void keepAlive(int fd, long idleLimitNs) {
        int probeSeconds = Math.clamp(idleLimitNs / (Pulse.BEATS * NS_PER_SECOND), 1, Short.MAX_VALUE);
        setInt(fd, SocketApi.IPPROTO_TCP, SocketApi.TCP_KEEPIDLE, probeSeconds);
        setInt(fd, SocketApi.IPPROTO_TCP, SocketApi.TCP_KEEPINTVL, probeSeconds);
        setInt(fd, SocketApi.IPPROTO_TCP, SocketApi.TCP_KEEPCNT, Pulse.BEATS - 1);
        setInt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_KEEPALIVE, 1);
    }

    /**
     * For loopback, which loses nothing: a default that paces (bbr) would make it several times slower. Any process may
     * choose reno; a kernel without it keeps its default.
     */
    public void chooseReno(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment name = arena.allocateFrom("reno");
            libC.setsockopt(fd, SocketApi.IPPROTO_TCP, SocketApi.TCP_CONGESTION, name, (int) name.byteSize() - 1);
        }
    }

    public void setInt(int fd, int level, int name, int value) {
        try (Arena arena = Arena.ofConfined()) {
            libC.setsockopt(fd, level, name, arena.allocateFrom(ValueLayout.JAVA_INT, value), Integer.BYTES);
        }
    }

    /** An option's value; a negative errno if it has none. */
    public int getInt(int fd, int level, int name) {
        return getInt(fd, level, name, 0);
    }

    /** The number at an offset of what an option yields; a negative errno if it yields less. */
    private int getInt(int fd, int level, int name, long offset) {
        try (Arena arena = Arena.ofConfined()) {
            int lengthBytes = (int) offset + Integer.BYTES;
            MemorySegment value = arena.allocate(lengthBytes, Long.BYTES);
            MemorySegment length = arena.allocateFrom(ValueLayout.JAVA_INT, lengthBytes);
            int result = libC.getsockopt(fd, level, name, value, length);
            if (result < 0) {
                return result;
            }
            return length.get(ValueLayout.JAVA_INT, 0) < lengthBytes
                    ? -Errno.ENOENT
                    : value.get(ValueLayout.JAVA_INT, offset);
        }
    }

    /** The least time in which the peer's machine has acknowledged bytes; 0 if unknown. */
    public long leastRoundTripNs(int fd) {
        int micros = getInt(fd, SocketApi.IPPROTO_TCP, SocketApi.TCP_INFO, SocketApi.TCP_INFO_MIN_RTT_OFFSET);
        return micros < 0 ? 0 : 1_000L * micros; // all bits are set while it is unknown
    }

    /** The errno of a failed connect; 0 when it has not failed. */
    public int pendingError(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment value = arena.allocate(ValueLayout.JAVA_INT);
            MemorySegment length = arena.allocateFrom(ValueLayout.JAVA_INT, Integer.BYTES);
            libC.getsockopt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_ERROR, value, length);
            return value.get(ValueLayout.JAVA_INT, 0);
        }
    }

    /**
     * A descriptor that becomes readable when the process that created the other end of a Unix socket has ended;
     * negative when the operating system provides none: before Linux 6.5 that is so for a process whose PID namespace
     * this one does not see, and for one that has hung up already.
     */
    public int deathOfPeer(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment death = arena.allocateFrom(ValueLayout.JAVA_INT, -1);
            MemorySegment size = arena.allocateFrom(ValueLayout.JAVA_INT, Integer.BYTES);
            if (libC.getsockopt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_PEERPIDFD, death, size) == 0) {
                return death.get(ValueLayout.JAVA_INT, 0);
            }
            MemorySegment value = arena.allocate(SocketApi.UCRED_SIZE_BYTES, 4);
            MemorySegment length = arena.allocateFrom(ValueLayout.JAVA_INT, (int) SocketApi.UCRED_SIZE_BYTES);
            int result = libC.getsockopt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_PEERCRED, value, length);
            int pid = value.get(ValueLayout.JAVA_INT, SocketApi.UCRED_PID_OFFSET);
            int opened = result < 0 || pid == 0 ? -Errno.ENOENT : libC.pidfd_open(pid);
            if (opened >= 0 && isHungUp(fd)) {
                // The process may have ended before that, and its number be another's, which may live for ever.
                libC.close(opened);
                return -Errno.ESRCH;
            }
            return opened;
        }
    }

    private boolean isHungUp(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment vector = arena.allocate(IoVector.SIZE_BYTES, 8);
            MemorySegment header = arena.allocate(MessageHeader.SIZE_BYTES, 8);
            IoVector.set(vector, 0, arena.allocate(1).address(), 1);
            MessageHeader.vectors(header, vector, 1);
            long count = libC.recvmsg(fd, header, SocketApi.MSG_PEEK);
            return count <= 0 && !IoResult.wouldBlock(count);
        }
    }

    /** Whether the other end of a Unix socket was created by this process's user, by connecting or listening. */
    public boolean isOfThisUser(int fd) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment value = arena.allocate(SocketApi.UCRED_SIZE_BYTES, 4);
            MemorySegment length = arena.allocateFrom(ValueLayout.JAVA_INT, (int) SocketApi.UCRED_SIZE_BYTES);
            return libC.getsockopt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_PEERCRED, value, length) == 0
                    && value.get(ValueLayout.JAVA_INT, SocketApi.UCRED_UID_OFFSET) == libC.getuid();
        }
    }
}
