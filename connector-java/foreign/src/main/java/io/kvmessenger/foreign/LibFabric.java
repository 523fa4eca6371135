package io.kvmessenger.foreign;

import java.lang.foreign.MemorySegment;

/**
 * The functions of libfabric that this project calls, under their C names; see
 * <a href="https://ofiwg.github.io/libfabric/">the manual</a>.
 *
 * <p>Objects of the library are identified by their address. A result below zero is {@code -errno}, with the C
 * library's numbers or {@link FabricApi}'s; a function that the object's provider lacks returns {@code -ENOSYS}.
 * Arguments that are always null, zero or one in this project are omitted. Which calls may run concurrently depends on
 * the threading model of the opened domain.
 */
public interface LibFabric {
    int fi_version();

    /** @param node the address to reach, or with {@link FabricApi#FI_SOURCE} to open; may be null */
    int fi_getinfo(int version, MemorySegment node, long flags, MemorySegment hints, MemorySegment info);

    /** A copy, which has to be freed; an empty struct for {@code NULL}. */
    MemorySegment fi_dupinfo(MemorySegment info);

    void fi_freeinfo(MemorySegment info);

    int fi_fabric(MemorySegment attributes, MemorySegment fabric);

    String fi_strerror(int number);

    int fi_close(long fid);

    int fi_control(long fid, int command, MemorySegment argument);

    int fi_domain(long fabric, MemorySegment info, MemorySegment domain);

    /** Whether a wait for the objects' descriptors may begin: {@code -EAGAIN} when something has to be read first. */
    int fi_trywait(long fabric, MemorySegment fids, int count);

    int fi_av_open(long domain, MemorySegment attributes, MemorySegment vector);

    int fi_cq_open(long domain, MemorySegment attributes, MemorySegment queue);

    int fi_endpoint(long domain, MemorySegment info, MemorySegment endpoint);

    int fi_ep_bind(long endpoint, long fid, long flags);

    int fi_enable(long endpoint);

    int fi_getname(long endpoint, MemorySegment address, MemorySegment lengthBytes);

    int fi_av_insert(long vector, MemorySegment address, MemorySegment handle);

    int fi_mr_reg(long domain, long address, long lengthBytes, long access, long requestedKey, MemorySegment region);

    long fi_mr_desc(long region);

    long fi_mr_key(long region);

    long fi_cq_read(long queue, MemorySegment entries, long count);

    long fi_cq_readerr(long queue, MemorySegment entry);

    /** @param entry filled by {@link #fi_cq_readerr} */
    String fi_cq_strerror(long queue, MemorySegment entry);

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
