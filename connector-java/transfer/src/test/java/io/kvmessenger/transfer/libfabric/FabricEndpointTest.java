package io.kvmessenger.transfer.libfabric;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FabricLayout;
import io.kvmessenger.foreign.LibFabric;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Errors of operations, one after the other, from a provider that writes to where the entry points. */
final class FabricEndpointTest {
    private static final byte PROVIDERS_OWN = (byte) 0xEE;

    private final Arena arena = Arena.ofConfined();
    private final List<Boolean> clean = new ArrayList<>();
    private long handles;

    private Object call(String name, Object[] arguments) {
        switch (name) {
            case "fi_fabric", "fi_domain", "fi_av_open", "fi_cq_open", "fi_endpoint" ->
                ((MemorySegment) arguments[arguments.length - 1]).set(JAVA_LONG, 0, ++handles);
            case "fi_cq_readerr" -> {
                MemorySegment entry = (MemorySegment) arguments[1];
                clean.add(entry.mismatch(arena.allocate(entry.byteSize())) == -1);
                entry.fill(PROVIDERS_OWN);
                return 1L;
            }
            case "fi_cq_strerror", "fi_strerror" -> {
                return "why";
            }
            default -> {}
        }
        return null;
    }

    private LibFabric library() {
        return (LibFabric) Proxy.newProxyInstance(
                LibFabric.class.getClassLoader(), new Class<?>[] {LibFabric.class}, (proxy, method, arguments) -> {
                    Object result = call(method.getName(), arguments);
                    if (result != null) {
                        return result;
                    }
                    Class<?> type = method.getReturnType();
                    return type == int.class ? (Object) 0 : type == long.class ? (Object) 0L : null;
                });
    }

    private FabricInfo info() {
        MemorySegment info = arena.allocate(FabricLayout.INFO_SIZE_BYTES, 8);
        MemorySegment attributes = arena.allocate(FabricLayout.FABRIC_ATTR_SIZE_BYTES, 8);
        attributes.set(ADDRESS, FabricLayout.FABRIC_ATTR_PROV_NAME, arena.allocateFrom("provider"));
        info.set(ADDRESS, FabricLayout.INFO_FABRIC_ATTR, attributes);
        return new FabricInfo(info.address());
    }

    /** It would take the last error's data, which is the provider's own, for a buffer of this engine to write to. */
    @Test
    void shouldShowTheProviderNothingOfAnEarlierError() {
        OpenFabric fabric = new OpenFabric(library(), info());
        FabricEndpoint endpoint = new FabricEndpoint(fabric, 8);
        for (int i = 0; i < 3; i++) {
            assertThat(endpoint.describeFailure()).isEqualTo("why");
        }
        assertThat(clean).containsExactly(true, true, true);
        endpoint.close();
        fabric.close();
        arena.close();
    }
}
