package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.MemorySegment;

/**
 * {@code struct msghdr} for sendmsg and recvmsg, and the one kind of control message used: file descriptors;
 * <a href="https://man7.org/linux/man-pages/man3/cmsg.3.html">cmsg(3)</a>. Not synchronized.
 */
public final class MessageHeader {
    public static final long SIZE_BYTES = 56;
    public static final long VECTORS_OFFSET = 16;
    public static final long VECTOR_COUNT_OFFSET = 24;
    public static final long CONTROL_OFFSET = 32;
    public static final long CONTROL_LENGTH_OFFSET = 40;
    public static final long FLAGS_OFFSET = 48;

    public static final long CONTROL_LEVEL_OFFSET = 8;
    public static final long CONTROL_TYPE_OFFSET = 12;
    public static final long CONTROL_DATA_OFFSET = 16;

    private MessageHeader() {}

    /** Points the message at the first {@code count} vectors of an array. */
    public static void vectors(MemorySegment message, MemorySegment vectors, int count) {
        message.set(JAVA_LONG, VECTORS_OFFSET, vectors.address());
        message.set(JAVA_LONG, VECTOR_COUNT_OFFSET, count);
    }

    public static long controlSpaceBytes(int fdCount) {
        return CONTROL_DATA_OFFSET + ((fdCount * 4L + 7) & ~7L);
    }

    /** Points the message at a control buffer; {@code lengthBytes} zero for none. */
    public static void control(MemorySegment message, MemorySegment control, long lengthBytes) {
        message.set(JAVA_LONG, CONTROL_OFFSET, lengthBytes == 0 ? 0 : control.address());
        message.set(JAVA_LONG, CONTROL_LENGTH_OFFSET, lengthBytes);
        message.set(JAVA_INT, FLAGS_OFFSET, 0);
    }

    /** Writes one SCM_RIGHTS control message that carries the descriptors. */
    public static void setDescriptors(MemorySegment control, int... fds) {
        control.set(JAVA_LONG, 0, CONTROL_DATA_OFFSET + fds.length * 4L);
        control.set(JAVA_INT, CONTROL_LEVEL_OFFSET, SocketApi.SOL_SOCKET);
        control.set(JAVA_INT, CONTROL_TYPE_OFFSET, SocketApi.SCM_RIGHTS);
        for (int i = 0; i < fds.length; i++) {
            control.set(JAVA_INT, CONTROL_DATA_OFFSET + i * 4L, fds[i]);
        }
    }

    /** Number of descriptors in the first control message received; 0 when there is none. */
    public static int descriptorCount(MemorySegment message, MemorySegment control) {
        if (message.get(JAVA_LONG, CONTROL_LENGTH_OFFSET) < CONTROL_DATA_OFFSET
                || control.get(JAVA_INT, CONTROL_LEVEL_OFFSET) != SocketApi.SOL_SOCKET
                || control.get(JAVA_INT, CONTROL_TYPE_OFFSET) != SocketApi.SCM_RIGHTS) {
            return 0;
        }
        return (int) ((control.get(JAVA_LONG, 0) - CONTROL_DATA_OFFSET) / 4);
    }

    /** Whether the received message had more control data than the buffer could hold; the kernel dropped the rest. */
    public static boolean isControlTruncated(MemorySegment message) {
        return (message.get(JAVA_INT, FLAGS_OFFSET) & SocketApi.MSG_CTRUNC) != 0;
    }

    public static int descriptor(MemorySegment control, int index) {
        return control.get(JAVA_INT, CONTROL_DATA_OFFSET + index * 4L);
    }
}
