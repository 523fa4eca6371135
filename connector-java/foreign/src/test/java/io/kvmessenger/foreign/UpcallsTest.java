package io.kvmessenger.foreign;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import org.junit.jupiter.api.Test;

final class UpcallsTest {
    private static final FunctionDescriptor SUM =
            FunctionDescriptor.of(ValueLayout.JAVA_LONG, ValueLayout.JAVA_LONG, ValueLayout.JAVA_LONG);

    @SuppressWarnings("restricted")
    @Test
    void shouldCallJavaThroughAFunctionPointer() throws Throwable {
        var target = MethodHandles.lookup()
                .findStatic(Math.class, "addExact", MethodType.methodType(long.class, long.class, long.class));
        MemorySegment pointer = Upcalls.stub(target, SUM);
        long sum = (long) Linker.nativeLinker().downcallHandle(pointer, SUM).invokeExact(40L, 2L);
        assertThat(sum).isEqualTo(42);
    }

    @Test
    void shouldSeeTheMemoryBehindAnAddress() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment owned = arena.allocate(16);
            ForeignMemory.at(owned.address(), 16).set(ValueLayout.JAVA_LONG, 8, 7);
            assertThat(owned.get(ValueLayout.JAVA_LONG, 8)).isEqualTo(7);
        }
    }
}
