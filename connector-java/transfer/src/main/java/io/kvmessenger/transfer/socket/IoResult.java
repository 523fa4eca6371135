package io.kvmessenger.transfer.socket;

import io.kvmessenger.foreign.Errno;

/** Interprets the result of a non-blocking read or write. Pure functions. */
public final class IoResult {
    private IoResult() {}

    public static boolean wouldBlock(long result) {
        return result == -Errno.EAGAIN || result == -Errno.EINTR;
    }

    /**
     * Whether a refused {@code sendmsg} with descriptors is no fault of what is sent: there is no room, or the peer has
     * gone, which its hang-up shows.
     */
    static boolean mayPass(long result) {
        return switch ((int) -result) {
            case Errno.EAGAIN,
                    Errno.EINTR,
                    Errno.ENOBUFS,
                    Errno.ENOMEM,
                    Errno.ETOOMANYREFS,
                    Errno.EPIPE,
                    Errno.ECONNRESET -> true;
            default -> false;
        };
    }

    /** Describes the end of a stream: {@code result} is 0 or {@code -errno}. */
    public static String endOf(long result) {
        if (result == -Errno.EBADMSG) {
            return "what came on the path is not what the peer sealed";
        }
        return result == 0 ? "the peer closed the path" : "the path broke with " + Errno.name((int) -result);
    }
}
