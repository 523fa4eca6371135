package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.ForeignMemory;
import io.kvmessenger.foreign.IoVector;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferOptions;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** One write that takes the network many times the limit within which a path must move: it arrives once. */
@Timeout(900)
final class SlowNetworkTest {
    private static final long WRITE_BYTES = 64 << 20;
    /** So that the kernel's buffers, and the steps in which it acknowledges, are small beside what a limit moves. */
    private static final long BYTES_PER_STEP = 128 << 10;

    private static final long STEP_NS = TimeUnit.MILLISECONDS.toNanos(20);
    /** The paths' limit too, which is not longer than this. */
    private static final long CONNECT_LIMIT_NS = TimeUnit.MILLISECONDS.toNanos(800);

    private static final int LIMITS_MIN = 10;
    /** Read beside the payload: headers, probes, and with sealing prefixes and tags. */
    private static final double OVERHEAD_MAX = 1.01;

    private boolean throttled;
    private long allowedBytes;
    private long readBytes;

    private final LibC real = new FfmLibC();
    private final LibC slow = (LibC) Proxy.newProxyInstance(
            LibC.class.getClassLoader(),
            new Class<?>[] {LibC.class},
            (proxy, method, arguments) -> call(method, arguments));

    private Object call(Method method, Object[] arguments) throws Throwable {
        String name = method.getName();
        if (throttled && name.equals("read")) {
            return read((int) arguments[0], (MemorySegment) arguments[1], (long) arguments[2]);
        }
        if (throttled && name.equals("readv")) {
            MemorySegment vectors = (MemorySegment) arguments[1];
            long lengthBytes = IoVector.lengthBytes(vectors, 0);
            return read((int) arguments[0], ForeignMemory.at(IoVector.address(vectors, 0), lengthBytes), lengthBytes);
        }
        try {
            return method.invoke(real, arguments);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }

    /** Of what has come, no more than the network has moved. */
    private long read(int fd, MemorySegment buffer, long lengthBytes) {
        if (allowedBytes == 0) {
            return -Errno.EAGAIN;
        }
        long count = real.read(fd, buffer, Math.min(lengthBytes, allowedBytes));
        allowedBytes -= Math.max(0, count);
        readBytes += Math.max(0, count);
        return count;
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void shouldWriteALongPageOnce(boolean sealed) {
        TransferOptions options = TransferOptions.defaults()
                .withTransports(TransferOptions.TCP)
                .with(TransferOptions.CONNECT_LIMIT_NS, CONNECT_LIMIT_NS)
                .with(TransferOptions.SEAL_TCP, sealed);
        try (TestedClock pair = new TestedClock(options, WRITE_BYTES, real, slow)) {
            pair.writer.memory().fill((byte) 7);
            throttled = true;
            long beganNs = pair.nowNs();
            long cookie = pair.write(WRITE_BYTES);
            while (!pair.target.filled.contains(cookie)) {
                // Time passes as the network moves: the test asks nothing of the machine's speed.
                allowedBytes = BYTES_PER_STEP;
                while (allowedBytes > 0 && !pair.target.filled.contains(cookie) && pair.writer.failed.isEmpty()) {
                    pair.cycle();
                }
                pair.pass(STEP_NS);
                assertThat(pair.writer.failed).isEmpty();
                assertThat(pair.writer.engine().counters().of(TransferCounter.WRITES_REPEATED))
                        .isZero();
            }
            assertThat(pair.nowNs() - beganNs).isGreaterThan(LIMITS_MIN * CONNECT_LIMIT_NS);
            assertThat((double) readBytes / WRITE_BYTES).isBetween(1.0, OVERHEAD_MAX);
            assertThat(pair.target.memory().mismatch(pair.writer.memory())).isEqualTo(-1);
            System.out.printf(
                    "%.1f s of the network's time, %d bytes read of a write of %d%n",
                    (pair.nowNs() - beganNs) / 1e9, readBytes, WRITE_BYTES);
        }
    }
}
