package io.kvmessenger.transfer.libfabric;

import static io.kvmessenger.transfer.spi.LittleEndian.LONG;

import io.kvmessenger.transfer.nic.RemoteMemory;
import io.kvmessenger.transfer.spi.PeerChannel;
import java.lang.foreign.MemorySegment;

/** Kinds of records between the two ends of a path over libfabric. */
final class FabricRecord {
    /** Target: the {@link RemoteMemory} for immediates without a page, then the {@link FabricName} of the endpoint. */
    static final int ACCEPTED = PeerChannel.FIRST_KIND;

    /** Target: the first immediate has arrived. */
    static final int READY = PeerChannel.FIRST_KIND + 1;

    /** Writer: a {@link RemoteMemory} that requests a region. */
    static final int REGION_WANTED = PeerChannel.FIRST_KIND + 2;

    /** Target: the {@link RemoteMemory}. */
    static final int REGION = PeerChannel.FIRST_KIND + 3;

    /** Writer: asks how many writes have arrived. */
    static final int ARRIVED_WANTED = PeerChannel.FIRST_KIND + 4;

    /** Target: the number of writes that have arrived, including the first immediate; 8 bytes. */
    static final int ARRIVED = PeerChannel.FIRST_KIND + 5;

    /** Target, before READY: the {@link io.kvmessenger.transfer.nic.SlabGrant} for the writer's frames. */
    static final int GRANTED = PeerChannel.FIRST_KIND + 6;

    /** Target: the slabs that the writer may use again, as the bits of 8 bytes. */
    static final int FREED = PeerChannel.FIRST_KIND + 7;

    private FabricRecord() {}

    /** The bits of freed slabs; 0, which no peer sends, when malformed. */
    static long parseSlabs(MemorySegment in) {
        return in.byteSize() == Long.BYTES ? in.get(LONG, 0) : 0;
    }

    /** Encodes bits into a record that is used again. */
    static void encodeSlabs(MemorySegment out, long slabs) {
        out.set(LONG, 0, slabs);
    }

    static MemorySegment encodeCount(long count) {
        MemorySegment out = MemorySegment.ofArray(new byte[Long.BYTES]);
        out.set(LONG, 0, count);
        return out;
    }

    /** Decodes the number; -1 when malformed. */
    static long parseCount(MemorySegment in) {
        return in.byteSize() == Long.BYTES ? Math.max(-1, in.get(LONG, 0)) : -1;
    }
}
