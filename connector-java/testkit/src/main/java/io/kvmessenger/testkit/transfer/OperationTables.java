package io.kvmessenger.testkit.transfer;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.FabricLayout;
import io.kvmessenger.foreign.Upcalls;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/**
 * C functions that call methods of one Java object by name, individually and in tables like those that libfabric's
 * objects point to.
 *
 * <p>An exception of a method is passed to the object's owner, and the function returns {@code -EIO}: it must not leave
 * an upcall.
 */
final class OperationTables {
    /** Longer than any table that is read. */
    private static final long TABLE_BYTES = 256;

    private static final int EIO = 5;

    private final Object methods;
    private final MethodHandles.Lookup lookup;
    private final Consumer<Throwable> onThrown;
    private final Arena arena;

    OperationTables(Object methods, MethodHandles.Lookup lookup, Consumer<Throwable> onThrown, Arena arena) {
        this.methods = methods;
        this.lookup = lookup;
        this.onThrown = onThrown;
        this.arena = arena;
    }

    /** @param operations method names by offset in the table */
    MemorySegment table(Map<Long, String> operations) {
        MemorySegment table = arena.allocate(TABLE_BYTES, Long.BYTES);
        table.set(JAVA_LONG, FabricLayout.OPS_SIZE, TABLE_BYTES);
        operations.forEach(
                (offset, name) -> table.set(JAVA_LONG, offset, function(name).address()));
        return table;
    }

    /** The method's parameters and result must be int or long; the result may be void. */
    MemorySegment function(String name) {
        Method method = Arrays.stream(methods.getClass().getDeclaredMethods())
                .filter(one -> one.getName().equals(name))
                .findFirst()
                .orElseThrow();
        try {
            MethodHandle target = lookup.unreflect(method).bindTo(methods);
            MethodHandle safe = MethodHandles.catchException(target, Throwable.class, onThrown(target.type()));
            return Upcalls.stub(safe, descriptor(target.type()), arena);
        } catch (ReflectiveOperationException e) {
            throw new LinkageError(name, e);
        }
    }

    private MethodHandle onThrown(MethodType type) throws ReflectiveOperationException {
        MethodHandle reported = MethodHandles.lookup()
                .findVirtual(Consumer.class, "accept", MethodType.methodType(void.class, Object.class))
                .bindTo(onThrown)
                .asType(MethodType.methodType(void.class, Throwable.class));
        if (type.returnType() == void.class) {
            return reported;
        }
        Object result = type.returnType() == int.class ? (Object) (-EIO) : (Object) (long) -EIO;
        return MethodHandles.filterReturnValue(reported, MethodHandles.constant(type.returnType(), result));
    }

    private static FunctionDescriptor descriptor(MethodType type) {
        List<MemoryLayout> arguments =
                type.parameterList().stream().map(OperationTables::layout).toList();
        MemoryLayout[] layouts = arguments.toArray(MemoryLayout[]::new);
        return type.returnType() == void.class
                ? FunctionDescriptor.ofVoid(layouts)
                : FunctionDescriptor.of(layout(type.returnType()), layouts);
    }

    private static MemoryLayout layout(Class<?> type) {
        return type == int.class ? JAVA_INT : JAVA_LONG;
    }
}
