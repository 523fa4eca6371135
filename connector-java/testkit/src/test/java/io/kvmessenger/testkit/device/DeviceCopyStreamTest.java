package io.kvmessenger.testkit.device;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatCode;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.transfer.device.CopyStream;
import io.kvmessenger.transfer.device.DeviceCopyStream;
import io.kvmessenger.transfer.device.DeviceDriver;
import io.kvmessenger.transfer.device.DeviceFault;
import io.kvmessenger.transfer.device.NoDeviceException;
import io.kvmessenger.transfer.device.PinnedMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Against the stand-in, whose streams run later than they are given something to do. */
final class DeviceCopyStreamTest {
    private static final long LENGTH_BYTES = 64 << 10;
    private static final long DELAY_NS = 1_000_000;
    private static final int NOT_FOUND = 500;
    private static final int OUT_OF_MEMORY = 2;

    private StandInCuda standIn;
    private DeviceDriver driver;
    private DeviceAllocation memory;
    private PinnedMemory pinned;
    private CopyStream stream;

    @BeforeEach
    void open() {
        standIn = StandInCuda.load();
        driver = StandInCuda.driver();
        memory = DeviceAllocation.ofHandles(driver, 0, 1, DeviceAllocation.GRANULE_BYTES);
        pinned = PinnedMemory.allocate(driver, 0, LENGTH_BYTES);
        stream = DeviceCopyStream.open(driver, 0);
    }

    @AfterEach
    void giveBack() {
        if (driver == null) {
            return;
        }
        standIn.delay(0);
        stream.close();
        pinned.close();
        memory.close();
        driver.close();
        assertThat(standIn.held()).isZero();
    }

    private void awaitDone(long serial) {
        while (!stream.isDone(serial)) {
            Thread.onSpinWait();
        }
    }

    @Test
    void shouldReportThatAMarkIsReachedOnlyWhenItsCopiesAreDone() {
        standIn.delay(DELAY_NS);
        pinned.memory().fill((byte) 7);
        stream.fromHost(memory.address(), pinned.memory().address(), LENGTH_BYTES);
        long first = stream.mark();
        stream.onDevice(memory.address() + LENGTH_BYTES, memory.address(), LENGTH_BYTES);
        long second = stream.mark();
        assertThat(first).isEqualTo(1);
        assertThat(second).isEqualTo(2);
        assertThat(stream.isDone(second)).isFalse();
        awaitDone(first);
        assertThat(standIn.bytes(memory.address(), LENGTH_BYTES).mismatch(pinned.memory()))
                .isEqualTo(-1);
        awaitDone(second);
        assertThat(standIn.bytes(memory.address() + LENGTH_BYTES, LENGTH_BYTES).mismatch(pinned.memory()))
                .isEqualTo(-1);
        assertThat(standIn.pageableCopies()).isZero();
    }

    @Test
    void shouldQueueScatteredCopiesByOneCall() {
        long before = standIn.callCount("cuMemcpyBatchAsync_v2");
        long single = standIn.callCount("cuMemcpyDtoHAsync_v2");
        scatterAndCompare();
        assertThat(standIn.callCount("cuMemcpyBatchAsync_v2")).isEqualTo(before + 2);
        assertThat(standIn.callCount("cuMemcpyDtoHAsync_v2")).isEqualTo(single);
    }

    @Test
    void shouldQueueThemOneByOneWhereTheDriverIsOlder() {
        standIn.fail("cuMemcpyBatchAsync_v2", 1, NOT_FOUND);
        long batches = standIn.callCount("cuMemcpyBatchAsync_v2");
        scatterAndCompare();
        assertThat(standIn.callCount("cuMemcpyBatchAsync_v2")).isEqualTo(batches + 1);
    }

    /** Every other granule of 64 bytes, from the device and back to another place, through host memory. */
    private void scatterAndCompare() {
        MemorySegment source = standIn.bytes(memory.address(), LENGTH_BYTES);
        for (long i = 0; i < LENGTH_BYTES; i += Long.BYTES) {
            source.set(ValueLayout.JAVA_LONG, i, i);
        }
        long to = memory.address() + LENGTH_BYTES;
        for (long i = 0; i < LENGTH_BYTES; i += 256) {
            stream.toHost(pinned.memory().address() + i, memory.address() + i, 64);
        }
        stream.mark();
        for (long i = 0; i < LENGTH_BYTES; i += 256) {
            stream.fromHost(to + i, pinned.memory().address() + i, 64);
        }
        awaitDone(stream.mark());
        MemorySegment target = standIn.bytes(to, LENGTH_BYTES);
        for (long i = 0; i < LENGTH_BYTES; i += 256) {
            assertThat(target.asSlice(i, 64).mismatch(source.asSlice(i, 64))).isEqualTo(-1);
            assertThat(target.get(ValueLayout.JAVA_LONG, i + 64)).isZero();
        }
    }

    /** More marks than events were made at first, with none reached in between. */
    @Test
    void shouldKeepMarksApartHoweverManyAreOut() {
        standIn.delay(DELAY_NS / 20);
        long made = standIn.callCount("cuEventCreate");
        long last = 0;
        for (int i = 0; i < 100; i++) {
            stream.onDevice(memory.address() + LENGTH_BYTES, memory.address(), 64);
            last = stream.mark();
        }
        assertThat(last).isEqualTo(100);
        for (long serial = 1; serial <= last; serial++) {
            awaitDone(serial);
        }
        standIn.delay(0);
        for (int i = 0; i < 400; i++) {
            stream.onDevice(memory.address() + LENGTH_BYTES, memory.address(), 64);
            awaitDone(stream.mark());
        }
        assertThat(standIn.callCount("cuEventCreate") - made).isLessThanOrEqualTo(128);
    }

    @Test
    void shouldTakeNothingMoreOnceACallHasFailed() {
        standIn.fail("cuMemcpyDtoDAsync_v2", 1, OUT_OF_MEMORY);
        stream.onDevice(memory.address() + 64, memory.address(), 64);
        assertThatThrownBy(stream::mark)
                .isInstanceOf(DeviceFault.class)
                .hasMessage("cuMemcpyDtoDAsync failed with CUDA_ERROR_OUT_OF_MEMORY");
        assertThatThrownBy(stream::mark).isInstanceOf(DeviceFault.class);
    }

    @Test
    void shouldReportThatWhatItQueuedHasFailed() {
        stream.onDevice(memory.address() + 64, memory.address(), 64);
        standIn.fail("cuEventQuery", 1, NOT_FOUND);
        long serial = stream.mark();
        assertThatThrownBy(() -> stream.isDone(serial)).isInstanceOf(DeviceFault.class);
    }

    /** What was queued may write to memory that is given back as soon as the stream is closed. */
    @Test
    void shouldWaitForItsCopiesWhenItIsClosed() {
        standIn.delay(DELAY_NS);
        pinned.memory().fill((byte) 9);
        for (int i = 0; i < 20; i++) {
            stream.fromHost(memory.address(), pinned.memory().address(), LENGTH_BYTES);
            stream.mark();
        }
        stream.close();
        standIn.bytes(memory.address(), LENGTH_BYTES).fill((byte) 1);
        assertThat(standIn.bytes(memory.address(), LENGTH_BYTES).get(ValueLayout.JAVA_BYTE, 5))
                .isEqualTo((byte) 1);
    }

    @Test
    void shouldPinMemoryThatIsThere() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment own = arena.allocate(LENGTH_BYTES, 4096);
            PinnedMemory again = PinnedMemory.of(driver, 1, own);
            stream.toHost(own.address(), memory.address(), LENGTH_BYTES);
            awaitDone(stream.mark());
            assertThat(standIn.pageableCopies()).isZero();
            assertThatThrownBy(() -> PinnedMemory.of(driver, 0, own))
                    .isInstanceOf(DeviceFault.class)
                    .hasMessageContaining("ALREADY_REGISTERED");
            again.close();
        }
    }

    /** An engine's thread has a context of the engine's, which it finds again. */
    @Test
    void shouldLeaveAThreadsContextAsItWas() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment current = arena.allocate(ValueLayout.JAVA_LONG);
            driver.cuda().cuCtxSetCurrent(driver.contexts().of(1));
            driver.contexts().within(0, () -> {
                driver.cuda().cuCtxGetCurrent(current);
                assertThat(current.get(ValueLayout.JAVA_LONG, 0))
                        .isEqualTo(driver.contexts().of(0));
            });
            driver.cuda().cuCtxGetCurrent(current);
            assertThat(current.get(ValueLayout.JAVA_LONG, 0))
                    .isEqualTo(driver.contexts().of(1));
        }
    }

    @Test
    void shouldSayWhyThereIsNoDriver() {
        assertThatThrownBy(() -> DeviceDriver.open("libcuda-that-nothing-has.so.1"))
                .isInstanceOf(NoDeviceException.class)
                .hasMessageStartingWith("NVIDIA's driver cannot be loaded (")
                .hasMessageEndingWith(": install it, or leave cuda out of the transports");
    }

    @Test
    void shouldNotWaitForAStreamThatIsIdle() {
        assertThatCode(() -> assertThat(stream.isDone(0)).isTrue()).doesNotThrowAnyException();
    }
}
