package io.kvmessenger.transfer.verbs;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;

import io.kvmessenger.transfer.spi.Endpoint;
import java.lang.foreign.MemorySegment;

/**
 * Identifies the path of a peer that a record is about. A value.
 *
 * @param network the peer's network that it uses, from 0
 * @param serial its number among the paths of that network; never reused
 */
record PathName(int network, int serial) {
    static final int LENGTH_BYTES = 2 * Integer.BYTES;

    /** Encodes a record about the path. */
    MemorySegment with(MemorySegment body) {
        MemorySegment out = MemorySegment.ofArray(new byte[LENGTH_BYTES + (int) body.byteSize()]);
        out.set(INT, 0, network);
        out.set(INT, 4, serial);
        MemorySegment.copy(body, 0, out, LENGTH_BYTES, body.byteSize());
        return out;
    }

    /** Decodes the path that a record is about; null when malformed. */
    static PathName parse(MemorySegment record) {
        if (record.byteSize() < LENGTH_BYTES) {
            return null;
        }
        PathName name = new PathName(record.get(INT, 0), record.get(INT, 4));
        return name.network < 0 || name.network >= Endpoint.NETWORKS_MAX ? null : name;
    }

    static MemorySegment body(MemorySegment record) {
        return record.asSlice(LENGTH_BYTES);
    }
}
