package io.kvmessenger.foreign;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.invoke.VarHandle;
import java.util.function.Function;

/**
 * What the generated classes of native libraries have in common: handles of functions, the error number of a call, and
 * tables of operations. Safe from any thread.
 */
@SuppressWarnings("restricted")
final class Downcalls {
    static final Linker.Option ERRNO = Linker.Option.captureCallState("errno");

    private static final Linker LINKER = Linker.nativeLinker();
    private static final StructLayout CALL_STATE = Linker.Option.captureStateLayout();
    private static final VarHandle CALL_STATE_ERRNO =
            CALL_STATE.varHandle(MemoryLayout.PathElement.groupElement("errno"));
    private static final ThreadLocal<MemorySegment> STATE =
            ThreadLocal.withInitial(() -> Arena.ofAuto().allocate(CALL_STATE));

    private Downcalls() {}

    /** A function pointer in the form of a downcall, created once. Immutable, so a data race on a cache is benign. */
    record Pointer(long address, MemorySegment entry) {
        static final Pointer NULL = new Pointer(0, MemorySegment.NULL);

        Pointer at(long wanted) {
            return address == wanted ? this : new Pointer(wanted, MemorySegment.ofAddress(wanted));
        }
    }

    /** A function of this process. One that it lacks fails when it is called, with an error that names it. */
    static MethodHandle ofProcess(String name, FunctionDescriptor descriptor, Linker.Option... options) {
        return LINKER.defaultLookup()
                .find(name)
                .map(symbol -> LINKER.downcallHandle(symbol, descriptor, options))
                .orElseGet(() -> absent(
                        name, LINKER.downcallHandle(descriptor, options).type().dropParameterTypes(0, 1)));
    }

    /** A function of a library. */
    static MethodHandle of(
            Function<String, MemorySegment> exports,
            String name,
            FunctionDescriptor descriptor,
            Linker.Option... options) {
        return LINKER.downcallHandle(exports.apply(name), descriptor, options);
    }

    /** The same; null if the library is older than the function. */
    static MethodHandle optional(
            Function<String, MemorySegment> exports,
            String name,
            FunctionDescriptor descriptor,
            Linker.Option... options) {
        try {
            return of(exports, name, descriptor, options);
        } catch (UnsatisfiedLinkError e) {
            return null;
        }
    }

    /** A function of this signature whose address is the first argument of each call. */
    static MethodHandle ofPointer(FunctionDescriptor descriptor) {
        return LINKER.downcallHandle(descriptor);
    }

    static Linker.Option variadic(int firstVariadicArgument) {
        return Linker.Option.firstVariadicArg(firstVariadicArgument);
    }

    /** A struct of bytes, passed by value. */
    static MemoryLayout struct(long lengthBytes) {
        return MemoryLayout.structLayout(MemoryLayout.sequenceLayout(lengthBytes, JAVA_BYTE));
    }

    /** The function at an offset of the table that {@code tableAt} refers to. */
    static long operation(long tableAt, long offset) {
        return ForeignMemory.longAt(ForeignMemory.longAt(tableAt) + offset);
    }

    /** The same of a table that begins with its length; 0 if the table is shorter, or the entry is null. */
    static long sizedOperation(long tableAt, long offset) {
        long table = ForeignMemory.longAt(tableAt);
        return table == 0 || ForeignMemory.longAt(table + FabricLayout.OPS_SIZE) <= offset
                ? 0
                : ForeignMemory.longAt(table + offset);
    }

    /** This thread's capture of errno, for calls that report errors by it. */
    static MemorySegment callState() {
        return STATE.get();
    }

    /** The result, or {@code -errno} for -1. */
    static int orErrno(int result, MemorySegment state) {
        return result == -1 ? -errno(state) : result;
    }

    static long orErrno(long result, MemorySegment state) {
        return result == -1 ? -errno(state) : result;
    }

    /** Below zero for a failure: most functions return the error number, some -1 with the number in errno. */
    static int orErrnoOrNumber(int result, MemorySegment state) {
        return result == -1 ? -errno(state) : -Math.abs(result);
    }

    /** The address, or {@code -errno} for null. */
    static long orErrnoOrNumber(long address, MemorySegment state) {
        return address == 0 ? -errno(state) : address;
    }

    private static int errno(MemorySegment state) {
        return (int) CALL_STATE_ERRNO.get(state, 0L);
    }

    static Error unexpected(Throwable t) {
        return t instanceof UnsatisfiedLinkError
                ? new UnsatisfiedLinkError(t.getMessage()) // with the caller's stack
                : new AssertionError("a downcall does not throw", t);
    }

    /** A stand-in that throws for a function that the library lacks. */
    private static MethodHandle absent(String name, MethodType type) {
        MethodHandle thrower = MethodHandles.throwException(type.returnType(), UnsatisfiedLinkError.class)
                .bindTo(new UnsatisfiedLinkError("the C library has no function " + name));
        return MethodHandles.dropArguments(thrower, 0, type.parameterList());
    }
}
