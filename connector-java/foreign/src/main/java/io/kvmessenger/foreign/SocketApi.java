package io.kvmessenger.foreign;

/** Constants of the socket calls; <a href="https://man7.org/linux/man-pages/man7/socket.7.html">socket(7)</a>. */
public final class SocketApi {
    public static final int AF_UNIX = 1;
    public static final int AF_INET = 2;
    public static final int AF_INET6 = 10;
    public static final int SOCK_STREAM = 1;
    public static final int SOCK_NONBLOCK = 0x800;
    public static final int SOCK_CLOEXEC = 0x80000;
    public static final int SOL_SOCKET = 1;
    public static final int SO_REUSEADDR = 2;
    public static final int SO_ERROR = 4;
    /** Bytes that a socket may hold; set to n it becomes 2 n, since bookkeeping counts too. */
    public static final int SO_SNDBUF = 7;

    public static final int SO_KEEPALIVE = 9;
    public static final int SO_PEERCRED = 17;
    /** Since Linux 6.5. */
    public static final int SO_PEERPIDFD = 77;

    /** Since Linux 5.14: whether the sizes of the buffers are fixed, or the kernel's to choose. */
    public static final int SO_BUF_LOCK = 72;

    public static final int IPPROTO_TCP = 6;
    public static final int TCP_NODELAY = 1;
    /** Seconds without traffic before the first probe. */
    public static final int TCP_KEEPIDLE = 4;
    /** Seconds between probes. */
    public static final int TCP_KEEPINTVL = 5;
    /** Unanswered probes after which the connection is broken. */
    public static final int TCP_KEEPCNT = 6;

    /** Yields {@code struct tcp_info}; later kernels append to it. */
    public static final int TCP_INFO = 11;

    public static final int TCP_CONGESTION = 13;
    public static final int TCP_NOTSENT_LOWAT = 25;
    public static final int IPPROTO_IP = 0;
    public static final int IP_BIND_ADDRESS_NO_PORT = 24;
    /** ioctl request: number of bytes that the peer has not acknowledged. */
    public static final int SIOCOUTQ = 0x5411;
    /** ioctl request: number of bytes that have arrived and were not read. */
    public static final int SIOCINQ = 0x541B;

    public static final int MSG_PEEK = 0x2;
    public static final int MSG_NOSIGNAL = 0x4000;
    public static final int MSG_CMSG_CLOEXEC = 0x40000000;
    public static final int MSG_CTRUNC = 0x8;
    public static final int SCM_RIGHTS = 1;
    public static final int SHUT_WR = 1;
    /** {@code struct ucred}, what SO_PEERCRED yields: pid, uid, gid. */
    public static final long UCRED_SIZE_BYTES = 12;

    public static final long UCRED_PID_OFFSET = 0;
    public static final long UCRED_UID_OFFSET = 4;

    /** {@code tcpi_min_rtt} of {@code struct tcp_info}, in microseconds; since Linux 4.6. */
    public static final long TCP_INFO_MIN_RTT_OFFSET = 148;

    private SocketApi() {}
}
