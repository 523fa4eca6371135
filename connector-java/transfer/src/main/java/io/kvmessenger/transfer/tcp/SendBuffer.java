package io.kvmessenger.transfer.tcp;

import io.kvmessenger.foreign.SocketApi;
import io.kvmessenger.transfer.socket.SocketCalls;

/**
 * What a data socket holds of what was written to it, sent or not: as the kernel chooses, or bounded.
 *
 * <p>Congestion control that looks for losses (CUBIC, most machines' default) sends until the queue of a link is full,
 * so a bound on what is not sent yet leaves that queue as it is. Before Linux 5.14 a bound could not be taken back, and
 * there is none. Worker only.
 */
final class SendBuffer {
    private final SocketCalls sockets;
    private final int fd;
    /** The buffer's size when it was the kernel's to choose; 0 while it is. */
    private int freeBytes;

    SendBuffer(SocketCalls sockets, int fd) {
        this.sockets = sockets;
        this.fd = fd;
    }

    /** Bounds what the socket holds; a bound that this user may not set is none. */
    void bound(long lengthBytes) {
        if (freeBytes == 0 && locks() != 0) {
            return; // unknown, or fixed by something else
        }
        if (freeBytes == 0) {
            freeBytes = sizeBytes();
        }
        int half = (int) Math.min(lengthBytes / 2, Integer.MAX_VALUE / 2);
        setSize(half);
        if (sizeBytes() < 2 * half) {
            free();
        }
    }

    /** The kernel chooses the size again. */
    void free() {
        if (freeBytes != 0) {
            setSize(freeBytes / 2);
            sockets.setInt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_BUF_LOCK, 0);
            freeBytes = 0;
        }
    }

    private int locks() {
        return sockets.getInt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_BUF_LOCK);
    }

    private int sizeBytes() {
        return sockets.getInt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_SNDBUF);
    }

    private void setSize(int half) {
        sockets.setInt(fd, SocketApi.SOL_SOCKET, SocketApi.SO_SNDBUF, half);
    }
}
