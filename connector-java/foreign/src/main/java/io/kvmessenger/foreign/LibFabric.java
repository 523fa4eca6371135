package io.kvmessenger.foreign;

import io.kvmessenger.bindings.C;
import io.kvmessenger.bindings.NativeLibrary;
import io.kvmessenger.bindings.Operation;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * The functions of libfabric that this project calls, under their C names; see
 * <a href="https://ofiwg.github.io/libfabric/">the manual</a>.
 *
 * <p>Most functions are inline in C: they call through an object's table of operations, as is done here.
 *
 * <p>Objects of the library are identified by their address. A result below zero is {@code -errno}, with the C
 * library's numbers or {@link FabricApi}'s; a function that the object's provider lacks returns {@code -ENOSYS}.
 * Arguments that are always null, zero or one in this project are omitted. Which calls may run concurrently depends on
 * the threading model of the opened domain.
 */
@NativeLibrary(file = "libfabric.so.1", environment = LibFabric.KEEP_SIGNALS)
public interface LibFabric {
    /**
     * Must be set before loading: a dependency of Debian's libfabric otherwise installs a SIGSEGV handler that ends the
     * process, and the JVM uses that signal all the time.
     */
    String KEEP_SIGNALS = "IPATH_NO_BACKTRACE";

    /** Longest text of an error, in bytes. */
    long ERROR_TEXT_BYTES = 256;

    int fi_version();

    /** @param node the address to reach, or with {@link FabricApi#FI_SOURCE} to open; may be null */
    @C("fi_getinfo(version, node, 0L, flags, hints, info)")
    int fi_getinfo(int version, MemorySegment node, long flags, MemorySegment hints, MemorySegment info);

    /** A copy, which has to be freed; an empty struct for {@code NULL}. */
    MemorySegment fi_dupinfo(MemorySegment info);

    void fi_freeinfo(MemorySegment info);

    @C("fi_fabric(attributes, fabric, 0L)")
    int fi_fabric(MemorySegment attributes, MemorySegment fabric);

    String fi_strerror(int number);

    @Operation(table = FabricLayout.FID_OPS, offset = FabricLayout.OPS_CLOSE, sized = true)
    int fi_close(long fid);

    @Operation(table = FabricLayout.FID_OPS, offset = FabricLayout.OPS_CONTROL, sized = true)
    int fi_control(long fid, int command, MemorySegment argument);

    @C("fi_domain(fabric, info, domain, 0L)")
    @Operation(table = FabricLayout.FABRIC_OPS, offset = FabricLayout.OPS_FABRIC_DOMAIN, sized = true)
    int fi_domain(long fabric, MemorySegment info, MemorySegment domain);

    @C("fi_av_open(domain, attributes, vector, 0L)")
    @Operation(table = FabricLayout.DOMAIN_OPS, offset = FabricLayout.OPS_DOMAIN_AV_OPEN, sized = true)
    int fi_av_open(long domain, MemorySegment attributes, MemorySegment vector);

    @C("fi_cq_open(domain, attributes, queue, 0L)")
    @Operation(table = FabricLayout.DOMAIN_OPS, offset = FabricLayout.OPS_DOMAIN_CQ_OPEN, sized = true)
    int fi_cq_open(long domain, MemorySegment attributes, MemorySegment queue);

    @C("fi_endpoint(domain, info, endpoint, 0L)")
    @Operation(table = FabricLayout.DOMAIN_OPS, offset = FabricLayout.OPS_DOMAIN_ENDPOINT, sized = true)
    int fi_endpoint(long domain, MemorySegment info, MemorySegment endpoint);

    @Operation(table = FabricLayout.FID_OPS, offset = FabricLayout.OPS_BIND, sized = true)
    int fi_ep_bind(long endpoint, long fid, long flags);

    default int fi_enable(long endpoint) {
        return fi_control(endpoint, FabricApi.FI_ENABLE, MemorySegment.NULL);
    }

    @Operation(table = FabricLayout.EP_CM, offset = FabricLayout.OPS_CM_GETNAME, sized = true)
    int fi_getname(long endpoint, MemorySegment address, MemorySegment lengthBytes);

    @C("fi_av_insert(vector, address, 1L, handle, 0L, 0L)")
    @Operation(table = FabricLayout.AV_OPS, offset = FabricLayout.OPS_AV_INSERT, sized = true)
    int fi_av_insert(long vector, MemorySegment address, MemorySegment handle);

    @C("fi_mr_reg(domain, address, lengthBytes, access, 0L, requestedKey, 0L, region, 0L)")
    @Operation(table = FabricLayout.DOMAIN_MR, offset = FabricLayout.OPS_MR_REG, sized = true)
    int fi_mr_reg(long domain, long address, long lengthBytes, long access, long requestedKey, MemorySegment region);

    default long fi_mr_desc(long region) {
        return ForeignMemory.longAt(region + FabricLayout.MR_DESC);
    }

    default long fi_mr_key(long region) {
        return ForeignMemory.longAt(region + FabricLayout.MR_KEY);
    }

    @Operation(table = FabricLayout.CQ_OPS, offset = FabricLayout.OPS_CQ_READ, sized = true)
    long fi_cq_read(long queue, MemorySegment entries, long count);

    @C("fi_cq_readerr(queue, entry, 0L)")
    @Operation(table = FabricLayout.CQ_OPS, offset = FabricLayout.OPS_CQ_READERR, sized = true)
    long fi_cq_readerr(long queue, MemorySegment entry);

    /** @param entry filled by {@link #fi_cq_readerr} */
    default String fi_cq_strerror(long queue, MemorySegment entry) {
        int number = entry.get(ValueLayout.JAVA_INT, FabricLayout.CQ_ERROR_PROV_ERRNO);
        long data = entry.get(ValueLayout.JAVA_LONG, FabricLayout.CQ_ERROR_ERR_DATA);
        try (Arena arena = Arena.ofConfined()) {
            return fi_cq_strerror(queue, number, data, arena.allocate(ERROR_TEXT_BYTES), ERROR_TEXT_BYTES);
        }
    }

    /** The text for a provider's error, perhaps in {@code buffer}; "" where the provider has none. */
    @Operation(table = FabricLayout.CQ_OPS, offset = FabricLayout.OPS_CQ_STRERROR, sized = true)
    String fi_cq_strerror(long queue, int number, long data, MemorySegment buffer, long lengthBytes);

    @Operation(table = FabricLayout.EP_RMA, offset = FabricLayout.OPS_RMA_WRITEDATA, sized = true)
    long fi_writedata(
            long endpoint,
            long source,
            long lengthBytes,
            long descriptor,
            long data,
            long targetHandle,
            long target,
            long key,
            long context);
}
