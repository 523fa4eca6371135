package io.kvmessenger.testkit.transfer;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.IoVector;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.foreign.MessageHeader;
import io.kvmessenger.foreign.SocketAddresses;
import io.kvmessenger.foreign.SocketApi;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * The real C library, which tracks the internet sockets that were connected or accepted through it and can break them.
 * Any thread.
 */
final class BreakingLibC {
    private static final short AF_UNSPEC = 0;
    private static final int SHUT_BOTH = 2;
    private static final int ADDRESS_BYTES = 16;

    private final LibC real = new FfmLibC();
    /** In order of connecting. */
    private final List<Integer> connected = new ArrayList<>();

    private final Set<Integer> swallowed = new HashSet<>();
    private final Set<Integer> forgotten = new HashSet<>();
    private boolean refusing;
    /** By socket: the address that it was connected to. */
    private final Map<Integer, String> targets = new HashMap<>();

    private final Set<String> cutAddresses = new HashSet<>();
    private final LibC breaking = (LibC) Proxy.newProxyInstance(
            LibC.class.getClassLoader(),
            new Class<?>[] {LibC.class},
            (proxy, method, arguments) -> call(method, arguments));

    LibC libC() {
        return breaking;
    }

    /** Exempts sockets from being broken, by order of connecting. */
    synchronized List<Integer> spare(int from, int count) {
        List<Integer> some = connected.subList(from, from + count);
        List<Integer> spared = List.copyOf(some);
        some.clear();
        return spared;
    }

    /** Number of sockets that could be broken now. */
    synchronized int count() {
        return connected.size();
    }

    /** Number of these that are connected to an address. */
    synchronized int countTowards(String address) {
        return (int)
                connected.stream().filter(fd -> address.equals(targets.get(fd))).count();
    }

    /** Breaks all sockets connected to an address and returns their number; further connects to it fail. */
    synchronized int cut(String address) {
        int count = countTowards(address);
        cutAddresses.add(address);
        for (int fd : List.copyOf(connected)) {
            if (address.equals(targets.get(fd))) {
                connected.remove((Integer) fd);
                destroy(fd, true);
            }
        }
        return count;
    }

    synchronized void join(String address) {
        cutAddresses.remove(address);
    }

    /** Breaks one socket in one of two manners; false when there is none. */
    synchronized boolean breakOne(Random random) {
        if (connected.isEmpty()) {
            return false;
        }
        destroy(connected.remove(random.nextInt(connected.size())), random.nextBoolean());
        return true;
    }

    synchronized int breakAll() {
        int count = connected.size();
        connected.forEach(fd -> destroy(fd, true));
        connected.clear();
        return count;
    }

    /** From now on everything sent on the socket that was connected first is silently lost. */
    synchronized void swallowOne() {
        swallowed.add(connected.getFirst());
    }

    /**
     * What a firewall does that forgets the connections: from now on everything sent on these sockets is silently lost,
     * and nothing comes on them.
     */
    synchronized void forget(List<Integer> fds) {
        swallowed.addAll(fds);
        forgotten.addAll(fds);
    }

    /** All open sockets, in order of connecting. */
    synchronized List<Integer> all() {
        return List.copyOf(connected);
    }

    /** Breaks an exempt socket that is still open. */
    synchronized void breakSpared(int fd) {
        destroy(fd, true);
    }

    /** Breaks a socket that a library opened by itself, in one of two manners. */
    synchronized void breakForeign(int fd, Random random) {
        destroy(fd, random.nextBoolean());
    }

    /** Whether the socket was connected or accepted through this object, and is open. */
    synchronized boolean has(int fd) {
        return connected.contains(fd);
    }

    /** From now on every connect fails. */
    synchronized void refuseConnects() {
        refusing = true;
    }

    synchronized void allowConnects() {
        refusing = false;
    }

    /** @param abruptly discards unsent and unread data and resets the peer; otherwise data is sent before the end */
    private void destroy(int fd, boolean abruptly) {
        if (!abruptly) {
            real.shutdown(fd, SHUT_BOTH);
            return;
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment nowhere = arena.allocate(ADDRESS_BYTES, 8);
            nowhere.set(ValueLayout.JAVA_SHORT, 0, AF_UNSPEC);
            real.connect(fd, nowhere, ADDRESS_BYTES);
        }
    }

    private Object call(Method method, Object[] arguments) throws Throwable {
        return switch (method.getName()) {
            case "connect" -> connect((int) arguments[0], (MemorySegment) arguments[1], (int) arguments[2]);
            case "accept4" ->
                accept((int) arguments[0], (MemorySegment) arguments[1], (MemorySegment) arguments[2], (int)
                        arguments[3]);
            case "close" -> close((int) arguments[0]);
            case "send" -> isSwallowing((int) arguments[0]) ? arguments[2] : method.invoke(real, arguments);
            case "read", "readv", "recvmsg" ->
                isForgotten((int) arguments[0]) ? (long) -Errno.EAGAIN : method.invoke(real, arguments);
            case "sendmsg" -> sendmsg((int) arguments[0], (MemorySegment) arguments[1], (int) arguments[2]);
            default -> {
                try {
                    yield method.invoke(real, arguments);
                } catch (InvocationTargetException e) {
                    throw e.getCause();
                }
            }
        };
    }

    private synchronized int connect(int fd, MemorySegment address, int addressLength) {
        if (refusing) {
            return -Errno.ECONNREFUSED;
        }
        String towards = target(address);
        if (cutAddresses.contains(towards)) {
            return -Errno.ECONNREFUSED;
        }
        int result = real.connect(fd, address, addressLength);
        boolean inet = address.get(ValueLayout.JAVA_SHORT, 0) != SocketApi.AF_UNIX;
        if (inet && (result == 0 || result == -Errno.EINPROGRESS)) {
            connected.add(fd);
            targets.put(fd, towards);
        }
        return result;
    }

    /** The text form of an IPv4 address; empty for others. */
    private static String target(MemorySegment address) {
        if (address.get(ValueLayout.JAVA_SHORT, 0) != SocketApi.AF_INET) {
            return "";
        }
        return IntStream.range(0, Integer.BYTES)
                .mapToObj(i -> Integer.toString(Byte.toUnsignedInt(
                        address.get(ValueLayout.JAVA_BYTE, SocketAddresses.INET_ADDRESS_OFFSET + i))))
                .collect(Collectors.joining("."));
    }

    private synchronized int accept(int fd, MemorySegment address, MemorySegment addressLength, int flags) {
        int accepted = real.accept4(fd, address, addressLength, flags);
        if (accepted >= 0) {
            connected.add(accepted);
        }
        return accepted;
    }

    private synchronized boolean isForgotten(int fd) {
        return forgotten.contains(fd);
    }

    private synchronized boolean isSwallowing(int fd) {
        return swallowed.contains(fd);
    }

    private long sendmsg(int fd, MemorySegment message, int flags) {
        if (!isSwallowing(fd)) {
            return real.sendmsg(fd, message, flags);
        }
        long count = message.get(ValueLayout.JAVA_LONG, MessageHeader.VECTOR_COUNT_OFFSET);
        MemorySegment vectors = ForeignMemory.at(
                message.get(ValueLayout.JAVA_LONG, MessageHeader.VECTORS_OFFSET), count * IoVector.SIZE_BYTES);
        long lengthBytes = 0;
        for (int i = 0; i < count; i++) {
            lengthBytes += IoVector.lengthBytes(vectors, i);
        }
        return lengthBytes;
    }

    private synchronized int close(int fd) {
        swallowed.remove(fd);
        forgotten.remove(fd);
        targets.remove(fd);
        connected.remove((Integer) fd);
        return real.close(fd);
    }
}
