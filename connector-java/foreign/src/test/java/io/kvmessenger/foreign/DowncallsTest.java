package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import org.junit.jupiter.api.Test;

final class DowncallsTest {
    private final LibC libC = new FfmLibC();

    @Test
    void shouldNameAFunctionThatTheLibraryLacksWhereItIsCalled() {
        MethodHandle absent = Downcalls.ofProcess(
                "kvm_no_such_function", FunctionDescriptor.of(JAVA_LONG, JAVA_INT, JAVA_LONG), Downcalls.ERRNO);
        assertThatThrownBy(() -> {
                    long result = (long) absent.invokeExact(MemorySegment.NULL, 1, 2L);
                    assertThat(result).isNegative();
                })
                .isInstanceOf(UnsatisfiedLinkError.class)
                .hasMessage("the C library has no function kvm_no_such_function");
    }

    @Test
    void shouldNameItAlsoInTheErrorOfTheMethodThatCalls() {
        Error seen = Downcalls.unexpected(new UnsatisfiedLinkError("the C library has no function f"));
        assertThat(seen).isInstanceOf(UnsatisfiedLinkError.class).hasMessage("the C library has no function f");
        assertThat(Downcalls.unexpected(new IllegalStateException("other"))).isInstanceOf(AssertionError.class);
    }

    @Test
    void shouldReturnWhatCReturnsAndAFailureAsItsErrno() {
        assertThat(libC.getpid()).isEqualTo((int) ProcessHandle.current().pid());
        assertThat(libC.close(-1)).isEqualTo(-9); // EBADF
    }
}
