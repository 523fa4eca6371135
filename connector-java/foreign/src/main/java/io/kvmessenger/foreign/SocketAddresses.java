package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.JAVA_SHORT;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.Inet4Address;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;

/** {@code struct sockaddr_in}, {@code sockaddr_in6} and {@code sockaddr_un}, written to and read from memory. */
public final class SocketAddresses {
    /** Enough for any address written here. */
    public static final long SIZE_MAX_BYTES = 128;

    public static final int INET_SIZE_BYTES = 16;
    public static final int INET6_SIZE_BYTES = 28;
    public static final long PORT_OFFSET = 2;
    public static final long INET_ADDRESS_OFFSET = 4;
    public static final long INET6_ADDRESS_OFFSET = 8;
    public static final long PATH_OFFSET = 2;
    private static final long INET_ADDRESS_BYTES = 4;
    private static final long INET6_ADDRESS_BYTES = 16;
    /** Longest name in the abstract namespace, in UTF-8. */
    public static final int ABSTRACT_NAME_MAX_BYTES = 107;

    private static final ValueLayout.OfShort NETWORK_SHORT = JAVA_SHORT.withOrder(ByteOrder.BIG_ENDIAN);

    private SocketAddresses() {}

    public static int family(InetAddress address) {
        return address instanceof Inet4Address ? SocketApi.AF_INET : SocketApi.AF_INET6;
    }

    /** Writes an internet address; returns its length for bind and connect. */
    public static int setInet(MemorySegment out, InetAddress address, int port) {
        out.fill((byte) 0);
        out.set(JAVA_SHORT, 0, (short) family(address));
        out.set(NETWORK_SHORT, PORT_OFFSET, (short) port);
        boolean v4 = address instanceof Inet4Address;
        byte[] bytes = address.getAddress();
        MemorySegment.copy(
                bytes, 0, out, ValueLayout.JAVA_BYTE, v4 ? INET_ADDRESS_OFFSET : INET6_ADDRESS_OFFSET, bytes.length);
        return v4 ? INET_SIZE_BYTES : INET6_SIZE_BYTES;
    }

    /** Writes a Unix address in the abstract namespace, which leaves no file behind; returns its length. */
    public static int setAbstract(MemorySegment out, String name) {
        byte[] bytes = name.getBytes(StandardCharsets.UTF_8);
        if (bytes.length > ABSTRACT_NAME_MAX_BYTES) {
            throw new IllegalArgumentException(
                    "name of " + bytes.length + " bytes, at most " + ABSTRACT_NAME_MAX_BYTES);
        }
        out.fill((byte) 0);
        out.set(JAVA_SHORT, 0, (short) SocketApi.AF_UNIX);
        MemorySegment.copy(bytes, 0, out, ValueLayout.JAVA_BYTE, PATH_OFFSET + 1, bytes.length);
        return (int) PATH_OFFSET + 1 + bytes.length;
    }

    /** The internet address that an operating system has written, or null if it is of another family. */
    public static InetAddress host(MemorySegment address) {
        boolean v4 = address.get(JAVA_SHORT, 0) == SocketApi.AF_INET;
        if (!v4 && address.get(JAVA_SHORT, 0) != SocketApi.AF_INET6) {
            return null;
        }
        byte[] bytes = address.asSlice(
                        v4 ? INET_ADDRESS_OFFSET : INET6_ADDRESS_OFFSET, v4 ? INET_ADDRESS_BYTES : INET6_ADDRESS_BYTES)
                .toArray(ValueLayout.JAVA_BYTE);
        try {
            return InetAddress.getByAddress(bytes);
        } catch (UnknownHostException e) {
            throw new AssertionError("an address of " + bytes.length + " bytes", e);
        }
    }

    public static int port(MemorySegment address) {
        return address.get(NETWORK_SHORT, PORT_OFFSET) & 0xffff;
    }
}
