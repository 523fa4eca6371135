package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.VarHandle;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(900)
final class StreamingCopyTest {
    private static final int LANES = StreamingCopy.LANES;
    private static final int STEP = StreamingCopy.STEP_BYTES;
    private static final byte UNTOUCHED = 0x5a;

    private final Arena arena = Arena.ofShared();
    private final MemorySegment addresses = arena.allocate(StreamingCopy.ADDRESSES_BYTES, Long.BYTES);
    private StreamingCopy copy;

    @BeforeEach
    void open() {
        assumeTrue(System.getProperty("os.arch").equals("amd64"), "the routine is written for x86_64");
        copy = StreamingCopy.ofThisProcess();
        assertThat(copy).as(StreamingCopy.absence()).isNotNull();
        assertThat(StreamingCopy.absence()).isEmpty();
    }

    @AfterEach
    void close() {
        arena.close();
    }

    private void setLane(int lane, MemorySegment source, MemorySegment target) {
        addresses.setAtIndex(JAVA_LONG, lane, source.address());
        addresses.setAtIndex(JAVA_LONG, LANES + lane, target.address());
    }

    @Test
    void shouldCopyEveryLengthFromEverySourceAlignmentAndNothingBeside() {
        Random random = new Random(1);
        for (int sourceShift = 0; sourceShift < STEP; sourceShift++) {
            long lengthBytes = (long) STEP * (1 + sourceShift % 40);
            MemorySegment[] sources = new MemorySegment[LANES];
            MemorySegment[] targets = new MemorySegment[LANES];
            for (int lane = 0; lane < LANES; lane++) {
                int shift = (sourceShift + lane) % STEP;
                sources[lane] = arena.allocate(lengthBytes + shift, 64).asSlice(shift);
                byte[] content = new byte[(int) lengthBytes];
                random.nextBytes(content);
                sources[lane].copyFrom(MemorySegment.ofArray(content));
                int step = StreamingCopy.TARGET_ALIGNMENT_BYTES * (1 + random.nextInt(8));
                targets[lane] = arena.allocate(lengthBytes + 2L * step, 64).fill(UNTOUCHED);
                setLane(lane, sources[lane], targets[lane].asSlice(step));
                targets[lane] = targets[lane].asSlice(step - 1, lengthBytes + 2);
            }
            copy.copy(addresses, lengthBytes);
            for (int lane = 0; lane < LANES; lane++) {
                assertThat(targets[lane].asSlice(1, lengthBytes).mismatch(sources[lane]))
                        .isEqualTo(-1);
                assertThat(targets[lane].get(JAVA_BYTE, 0)).isEqualTo(UNTOUCHED);
                assertThat(targets[lane].get(JAVA_BYTE, lengthBytes + 1)).isEqualTo(UNTOUCHED);
            }
        }
    }

    @Test
    void shouldRefuseALengthThatTheRoutineCannotDo() {
        for (long wrong : new long[] {-STEP, 0, 1, STEP - 1, STEP + 1, StreamingCopy.LENGTH_MAX_BYTES + STEP}) {
            assertThatThrownBy(() -> copy.copy(addresses, wrong)).isInstanceOf(IllegalArgumentException.class);
        }
    }

    /** Another thread that sees a round's number sees the round's bytes: those that are written last, too. */
    @Test
    void shouldLetNoLaterStoreBeSeenBeforeTheBytes() throws InterruptedException {
        int rounds = 100_000;
        long lengthBytes = 4L * STEP;
        MemorySegment source = arena.allocate(lengthBytes, 64);
        MemorySegment target = arena.allocate(LANES * lengthBytes, 64);
        MemorySegment seen = arena.allocate(3L * 64, 64);
        VarHandle number = JAVA_LONG.varHandle();
        for (int lane = 0; lane < LANES; lane++) {
            setLane(lane, source, target.asSlice(lane * lengthBytes));
        }
        List<Long> early = new ArrayList<>();
        Thread reader = new Thread(() -> {
            for (long round = 1; round <= rounds; round++) {
                while ((long) number.getAcquire(seen, 0L) != round) {
                    Thread.onSpinWait();
                }
                for (long at = target.byteSize() - STEP; at >= 0; at -= STEP) {
                    if (target.get(JAVA_LONG, at) != round) {
                        early.add(round);
                    }
                }
                number.setRelease(seen, 128L, round);
            }
        });
        reader.start();
        for (long round = 1; round <= rounds; round++) {
            for (long at = 0; at < lengthBytes; at += Long.BYTES) {
                source.set(JAVA_LONG, at, round);
            }
            copy.copy(addresses, lengthBytes);
            number.setRelease(seen, 0L, round);
            while ((long) number.getAcquire(seen, 128L) != round) {
                Thread.onSpinWait();
            }
        }
        reader.join();
        assertThat(early).isEmpty();
    }

    @Test
    void shouldFenceBeforeItReturns() {
        byte[] code = StreamingCopyCode.assemble();
        int end = code.length;
        assertThat(new byte[] {code[end - 4], code[end - 3], code[end - 2], code[end - 1]})
                .as("sfence, ret")
                .containsExactly(0x0F, 0xAE, 0xF8, 0xC3);
    }

    @Test
    void shouldSayInOneLineWhyThereIsNone() {
        assertThatThrownBy(() -> StreamingCopy.open(new FfmLibC(), "aarch64"))
                .isInstanceOf(IllegalStateException.class)
                .hasMessage("no streaming copy: it is written for x86_64, and this processor is aarch64");
        assertThatThrownBy(() -> StreamingCopy.open(refusing("mmap", Errno.ENOMEM, new ArrayList<>()), "amd64"))
                .isInstanceOf(IllegalStateException.class)
                .hasMessage("no streaming copy: mmap of a page failed with ENOMEM");
    }

    @Test
    void shouldGiveThePageBackWhereNoPageMayBeExecutable() {
        List<String> called = new ArrayList<>();
        assertThatThrownBy(() -> StreamingCopy.open(refusing("mprotect", Errno.EACCES, called), "amd64"))
                .isInstanceOf(IllegalStateException.class)
                .hasMessage(
                        "no streaming copy: the system lets no page be made executable, mprotect failed with EACCES");
        assertThat(called).containsExactly("mmap", "mprotect", "munmap");
    }

    private static LibC refusing(String function, int errno, List<String> called) {
        LibC real = new FfmLibC();
        return (LibC) Proxy.newProxyInstance(
                LibC.class.getClassLoader(), new Class<?>[] {LibC.class}, (proxy, method, arguments) -> {
                    called.add(method.getName());
                    if (method.getName().equals(function)) {
                        return method.getReturnType() == long.class ? (Object) (long) -errno : (Object) (-errno);
                    }
                    return call(real, method, arguments);
                });
    }

    private static Object call(LibC real, Method method, Object[] arguments) throws Throwable {
        try {
            return method.invoke(real, arguments);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }
}
