package io.kvmessenger.transfer.libfabric;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.FabricLayout;
import io.kvmessenger.foreign.LibFabric;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.Test;

/** An endpoint of a provider that writes to where an error's entry points, and that may refuse to close. */
final class FabricEndpointTest {
    private static final byte PROVIDERS_OWN = (byte) 0xEE;

    private final Arena arena = Arena.ofConfined();
    private final List<Boolean> clean = new ArrayList<>();
    private long handles;
    private final List<Long> closed = new ArrayList<>();
    private int readCount;
    /** Handles that the provider does not close. */
    private final Set<Long> busy = new HashSet<>();

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
            case "fi_cq_read" -> readCount++;
            case "fi_close" -> {
                if (busy.contains((Long) arguments[0])) {
                    return -Errno.EAGAIN;
                }
                closed.add((Long) arguments[0]);
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

    /** What a connection to it that is pending would find is there until its peer has had the time to end it. */
    @Test
    void shouldCloseTheEndpointOfAPeerThatWasNeverReadyAfterAWhile() {
        OpenFabric fabric = new OpenFabric(library(), info());
        PartedEndpoints parted = new PartedEndpoints();
        parted.add(new FabricEndpoint(fabric, 8), 0);
        long endpoint = handles;
        assertThat(parted.poll(PartedEndpoints.WAIT_NS - 1)).isTrue();
        assertThat(readCount).as("progress of the provider").isEqualTo(1);
        assertThat(closed).isEmpty();
        busy.add(endpoint);
        assertThat(parted.poll(PartedEndpoints.WAIT_NS)).isTrue();
        assertThat(closed).isEmpty();
        busy.clear();
        assertThat(parted.poll(PartedEndpoints.WAIT_NS)).isFalse();
        assertThat(closed).first().isEqualTo(endpoint);
        fabric.close();
        arena.close();
    }

    @Test
    void shouldCloseAllEndpointsWithTheirDomain() {
        OpenFabric fabric = new OpenFabric(library(), info());
        PartedEndpoints parted = new PartedEndpoints();
        parted.add(new FabricEndpoint(fabric, 8), 0);
        long endpoint = handles;
        parted.close();
        assertThat(closed).contains(endpoint);
        assertThat(parted.poll(PartedEndpoints.WAIT_NS)).isFalse();
        fabric.close();
        arena.close();
    }
}
