package io.kvmessenger.foreign;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.lang.reflect.Field;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Holds every offset, size and constant of the driver API to what the C compiler says of cuda.h. */
final class CudaLayoutProbeTest {
    private static final String HOME = System.getProperty("kvmessenger.cuda-header", "");

    private static final String INCLUDES = """
            #include <stddef.h>
            #include <stdio.h>
            #include <cuda.h>
            _Static_assert(__builtin_types_compatible_p(__typeof__(cuMemGetHandleForAddressRange),
                CUresult(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long)), "as it is called");
            _Static_assert(__builtin_types_compatible_p(__typeof__(cuFlushGPUDirectRDMAWrites),
                CUresult(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope)), "as it is called");
            _Static_assert(__builtin_types_compatible_p(__typeof__(cuModuleLoadData),
                CUresult(CUmodule *, const void *)), "as it is called");
            _Static_assert(__builtin_types_compatible_p(__typeof__(cuModuleUnload),
                CUresult(CUmodule)), "as it is called");
            _Static_assert(__builtin_types_compatible_p(__typeof__(cuModuleGetFunction),
                CUresult(CUfunction *, CUmodule, const char *)), "as it is called");
            _Static_assert(__builtin_types_compatible_p(__typeof__(cuLaunchKernel),
                CUresult(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                    void **, void **)), "as it is called");
            _Static_assert(__builtin_types_compatible_p(__typeof__(cuMemHostGetDevicePointer),
                CUresult(CUdeviceptr *, void *, unsigned)), "as it is called");
            """;

    /** By the beginning of the names of what lies in it: the struct. */
    private static final Map<String, String> STRUCTS = Map.of(
            "ALLOCATION_PROP_", "CUmemAllocationProp",
            "ACCESS_DESC_", "CUmemAccessDesc",
            "COPY_ATTRIBUTES_", "CUmemcpyAttributes",
            "IPC_HANDLE_", "CUipcMemHandle");

    /** Fields whose C name is not the rest of the constant's in lower case. */
    private static final Map<String, String> NAMES = Map.of(
            "requestedhandletypes", "requestedHandleTypes",
            "srcaccessorder", "srcAccessOrder",
            "location_type", "location.type",
            "gpudirectrdmacapable", "allocFlags.gpuDirectRDMACapable",
            "location_id", "location.id");

    @TempDir
    private Path folder;

    /** The C term that a constant of {@link CudaLayout} is the value of. */
    private static String term(String constant) {
        String prefix = STRUCTS.keySet().stream()
                .filter(constant::startsWith)
                .findFirst()
                .orElseThrow(() -> new AssertionError("no struct has " + constant));
        String struct = STRUCTS.get(prefix);
        String field = constant.substring(prefix.length()).toLowerCase(Locale.ROOT);
        return field.equals("size_bytes")
                ? "sizeof(" + struct + ")"
                : "offsetof(" + struct + ", " + NAMES.getOrDefault(field, field) + ")";
    }

    @Test
    void shouldAgreeWithTheCompiler() throws IOException, InterruptedException, IllegalAccessException {
        assumeTrue(
                !HOME.isEmpty(),
                "no cuda.h: -Dkvmessenger.cuda-header names no folder of it, examples/setup/find-cuda-header does");
        Map<String, Long> expected = new LinkedHashMap<>();
        for (Field field : CudaLayout.class.getDeclaredFields()) {
            expected.put(term(field.getName()), field.getLong(null));
        }
        for (Field field : CudaApi.class.getDeclaredFields()) {
            expected.put(field.getName(), field.getLong(null));
        }
        CompilerProbe.assertAgrees(folder, HOME, INCLUDES, expected);
        assertThat(expected).hasSizeGreaterThan(25);
    }
}
