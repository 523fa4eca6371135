package io.kvmessenger.connector.boot;

import io.kvmessenger.foreign.Upcalls;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.time.Duration;
import java.util.List;

/**
 * The table of C function pointers that a host process calls: magic, count, addresses, in the order of docs/boundary.md.
 *
 * <p>Written once, readable from any thread, never freed: a host may hold the pointers until the process ends.
 */
public final class FunctionTable {
    static final long MAGIC = 0x4B564D53_00000001L;
    static final List<String> FUNCTIONS =
            List.of("describe", "open", "submit", "poll", "stats", "fence", "leakCheck", "close", "await");

    private static final Duration CLOSE_LIMIT = Duration.ofSeconds(10);

    /** {@code int64_t f(int64_t, const void *, int64_t, void *, int64_t)}: addresses are passed as integers. */
    private static final FunctionDescriptor SIGNATURE = FunctionDescriptor.of(
            ValueLayout.JAVA_LONG,
            ValueLayout.JAVA_LONG,
            ValueLayout.JAVA_LONG,
            ValueLayout.JAVA_LONG,
            ValueLayout.JAVA_LONG,
            ValueLayout.JAVA_LONG);

    private FunctionTable() {}

    /** Publishes the functions over {@code messengers}; returns the table's address. */
    public static long publish(Messengers messengers) {
        Exports exports = new Exports(messengers, CLOSE_LIMIT);
        MemorySegment table = Arena.global().allocate(ValueLayout.JAVA_LONG, 2 + FUNCTIONS.size());
        table.setAtIndex(ValueLayout.JAVA_LONG, 0, MAGIC);
        table.setAtIndex(ValueLayout.JAVA_LONG, 1, FUNCTIONS.size());
        for (int i = 0; i < FUNCTIONS.size(); i++) {
            table.setAtIndex(ValueLayout.JAVA_LONG, 2 + i, stub(exports, FUNCTIONS.get(i)));
        }
        return table.address();
    }

    private static long stub(Exports exports, String name) {
        MethodType type = SIGNATURE.toMethodType();
        try {
            return Upcalls.stub(MethodHandles.lookup().bind(exports, name, type), SIGNATURE)
                    .address();
        } catch (ReflectiveOperationException e) {
            throw new LinkageError("export " + name + " is missing", e);
        }
    }
}
