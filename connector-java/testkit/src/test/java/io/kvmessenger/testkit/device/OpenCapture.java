package io.kvmessenger.testkit.device;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.CudaApi;
import io.kvmessenger.transfer.device.DeviceDriver;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.nio.file.Path;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * A graph capture in the driver's default mode, as engines capture, on a stream of its own. While it is open, a call that
 * such a capture does not allow ends it, whichever thread makes the call.
 *
 * <p>As an extension it is open during each test of a class, which fails if a call has ended it. One thread.
 */
public final class OpenCapture implements BeforeEachCallback, AfterEachCallback {
    private static final int GLOBAL = 0;

    private DeviceDriver driver;
    private MethodHandle end;
    private long stream;

    /** @throws org.opentest4j.TestAbortedException where this machine has no stand-in */
    @Override
    @SuppressWarnings("restricted")
    public void beforeEach(ExtensionContext test) {
        driver = StandInCuda.driver();
        SymbolLookup library = SymbolLookup.libraryLookup(Path.of(StandInCuda.library()), Arena.global());
        end = function(library, "cuStreamEndCapture", JAVA_LONG, ADDRESS);
        MethodHandle begin = function(library, "cuStreamBeginCapture_v2", JAVA_LONG, JAVA_INT);
        stream = driver.contexts().within(0, () -> {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment created = arena.allocate(JAVA_LONG);
                driver.require("cuStreamCreate", driver.cuda().cuStreamCreate(created, CudaApi.CU_STREAM_NON_BLOCKING));
                return created.get(JAVA_LONG, 0);
            }
        });
        driver.require("cuStreamBeginCapture", invoke(begin, stream, GLOBAL));
    }

    @Override
    public void afterEach(ExtensionContext test) {
        if (driver == null) {
            return; // there is no stand-in, and the test was skipped
        }
        try (Arena arena = Arena.ofConfined()) {
            int result = invoke(end, stream, arena.allocate(ADDRESS));
            driver.contexts().within(0, () -> driver.cuda().cuStreamDestroy_v2(stream));
            driver.close();
            assertThat(result).as("the end of the capture").isEqualTo(CudaApi.CUDA_SUCCESS);
        }
    }

    private static int invoke(MethodHandle function, Object... arguments) {
        try {
            return (int) function.invokeWithArguments(arguments);
        } catch (Throwable t) {
            throw new AssertionError(t);
        }
    }

    @SuppressWarnings("restricted")
    private static MethodHandle function(SymbolLookup library, String name, MemoryLayout... arguments) {
        return Linker.nativeLinker()
                .downcallHandle(library.findOrThrow(name), FunctionDescriptor.of(JAVA_INT, arguments));
    }
}
