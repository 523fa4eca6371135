package io.kvmessenger.foreign;

/**
 * Error numbers of C functions; <a href="https://man7.org/linux/man-pages/man3/errno.3.html">errno(3)</a>. Values of
 * Linux on x86_64 and aarch64.
 */
public final class Errno {
    public static final int EPERM = 1;
    public static final int ENOENT = 2;
    public static final int ESRCH = 3;
    public static final int EINTR = 4;
    public static final int EIO = 5;
    public static final int EAGAIN = 11;
    public static final int ENOMEM = 12;
    public static final int EACCES = 13;
    public static final int EINVAL = 22;
    public static final int ENFILE = 23;
    public static final int EMFILE = 24;
    public static final int EPIPE = 32;
    public static final int ENOSYS = 38;
    public static final int EBADMSG = 74;
    public static final int EOPNOTSUPP = 95;
    public static final int EADDRINUSE = 98;
    public static final int EADDRNOTAVAIL = 99;
    public static final int ECONNRESET = 104;
    public static final int ENOBUFS = 105;
    /** Too many descriptors are on their way between processes. */
    public static final int ETOOMANYREFS = 109;

    public static final int ECONNREFUSED = 111;
    public static final int EINPROGRESS = 115;

    private Errno() {}

    /**
     * Returns the result of a call that is refused only for lack of resources.
     *
     * @throws IllegalStateException when it is an error
     */
    public static long require(String call, long result) {
        if (result < 0) {
            throw new IllegalStateException(call + " failed with " + name((int) -result));
        }
        return result;
    }

    /** Name for a message: the symbol if this class has one, the number otherwise. */
    public static String name(int errno) {
        return switch (errno) {
            case EPERM -> "EPERM";
            case ENOENT -> "ENOENT";
            case ESRCH -> "ESRCH";
            case EINTR -> "EINTR";
            case EIO -> "EIO";
            case EAGAIN -> "EAGAIN";
            case ENOMEM -> "ENOMEM";
            case EACCES -> "EACCES";
            case EINVAL -> "EINVAL";
            case ENFILE -> "ENFILE";
            case EMFILE -> "EMFILE";
            case EPIPE -> "EPIPE";
            case ENOSYS -> "ENOSYS";
            case EBADMSG -> "EBADMSG";
            case EOPNOTSUPP -> "EOPNOTSUPP";
            case EADDRINUSE -> "EADDRINUSE";
            case EADDRNOTAVAIL -> "EADDRNOTAVAIL";
            case ECONNRESET -> "ECONNRESET";
            case ENOBUFS -> "ENOBUFS";
            case ETOOMANYREFS -> "ETOOMANYREFS";
            case ECONNREFUSED -> "ECONNREFUSED";
            case EINPROGRESS -> "EINPROGRESS";
            default -> "errno " + errno;
        };
    }
}
