package io.kvmessenger.foreign;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import org.junit.jupiter.api.Test;

final class FfmLibVerbsTest {
    private static final int ANSWER = 7;

    /** What a device's function would be: says with what it was called. */
    static int post(long pair, long request, MemorySegment refused) {
        return pair != 0 && request == pair + 1 ? Errno.ENOMEM : Errno.EINVAL;
    }

    static int poll(long queue, int entries, MemorySegment completions) {
        return queue != 0 && entries == 5 && completions.address() == queue + 2 ? ANSWER : -Errno.EINVAL;
    }

    @Test
    void shouldSayInOneLineWhyThereIsNone() {
        assertThatThrownBy(() -> new FfmLibVerbs("libibverbs-that-nothing-has.so.1"))
                .isInstanceOf(UnsatisfiedLinkError.class)
                .hasMessageContainingAll("libibverbs-that-nothing-has.so.1", "cannot open shared object file")
                .hasMessageNotContaining("\n");
    }

    @Test
    void shouldSayWhatALibraryLacks() {
        assertThatThrownBy(() -> new FfmLibVerbs("libc.so.6"))
                .isInstanceOf(UnsatisfiedLinkError.class)
                .hasMessageContaining("ibv_get_device_list");
    }

    /** What moves bytes is called by the table of the device that the object belongs to. */
    @Test
    void shouldCallWhatTheDevicesTablePointsTo() throws ReflectiveOperationException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment context = arena.allocate(328, 8);
            MethodType postType = MethodType.methodType(int.class, long.class, long.class, MemorySegment.class);
            FunctionDescriptor post = FunctionDescriptor.of(
                    ValueLayout.JAVA_INT, ValueLayout.JAVA_LONG, ValueLayout.JAVA_LONG, ValueLayout.ADDRESS);
            MemorySegment poster = Upcalls.stub(
                    MethodHandles.lookup().findStatic(FfmLibVerbsTest.class, "post", postType), post, arena);
            MethodType pollType = MethodType.methodType(int.class, long.class, int.class, MemorySegment.class);
            FunctionDescriptor poll = FunctionDescriptor.of(
                    ValueLayout.JAVA_INT, ValueLayout.JAVA_LONG, ValueLayout.JAVA_INT, ValueLayout.ADDRESS);
            MemorySegment poller = Upcalls.stub(
                    MethodHandles.lookup().findStatic(FfmLibVerbsTest.class, "poll", pollType), poll, arena);
            context.set(ValueLayout.ADDRESS, VerbsLayout.CONTEXT_OPS_POST_SEND, poster);
            context.set(ValueLayout.ADDRESS, VerbsLayout.CONTEXT_OPS_POLL_CQ, poller);
            MemorySegment object = arena.allocate(128, 8);
            object.set(ValueLayout.ADDRESS, 0, context);
            LibVerbs library = installed();
            long address = object.address();
            assertThat(library.ibv_post_send(address, address + 1, MemorySegment.NULL))
                    .isEqualTo(-Errno.ENOMEM);
            assertThat(library.ibv_poll_cq(address, 5, MemorySegment.ofAddress(address + 2)))
                    .isEqualTo(ANSWER);
        }
    }

    @Test
    void shouldSayWhatAStatusIs() {
        assertThat(installed().ibv_wc_status_str(VerbsApi.IBV_WC_RETRY_EXC_ERR)).contains("retry");
    }

    private static LibVerbs installed() {
        try {
            return new FfmLibVerbs(FfmLibVerbs.DEFAULT_NAME);
        } catch (UnsatisfiedLinkError e) {
            assumeTrue(
                    false,
                    e.getMessage()
                            + ": -Dkvmessenger.libfabric names no folder of it, examples/setup/find-libfabric does");
            throw e;
        }
    }
}
