package io.kvmessenger.transfer.link;

import io.kvmessenger.transfer.TransferEngine;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;

/**
 * A writer's request to open paths. A value.
 *
 * @param transport name of the domain's transport
 * @param wish specific to the domain
 */
record Attach(String transport, MemorySegment wish) {
    private static final int USE_SHIFT = 8;
    /** As many uses as the role of a data socket has room for. */
    private static final int USES_MASK = (1 << 15) - 1;

    /** Names one use of an attachment's number for data sockets, so that a late socket of an earlier one is recognized. */
    static int name(int number, int earlierUses) {
        return (earlierUses & USES_MASK) << USE_SHIFT | number;
    }

    static int number(int name) {
        return name & (1 << USE_SHIFT) - 1;
    }

    MemorySegment encode() {
        byte[] name = transport.getBytes(StandardCharsets.UTF_8);
        MemorySegment record = MemorySegment.ofArray(new byte[1 + name.length + (int) wish.byteSize()]);
        if (record.byteSize() > TransferEngine.MESSAGE_MAX_BYTES) {
            throw new AssertionError("the wish of " + transport + " is longer than a record");
        }
        record.set(ValueLayout.JAVA_BYTE, 0, (byte) name.length);
        MemorySegment.copy(name, 0, record, ValueLayout.JAVA_BYTE, 1, name.length);
        MemorySegment.copy(wish, 0, record, 1 + name.length, wish.byteSize());
        return record;
    }

    /** Decodes a record; null when malformed. The wish is a slice of the record. */
    static Attach parse(MemorySegment record) {
        int nameBytes = record.byteSize() == 0 ? -1 : record.get(ValueLayout.JAVA_BYTE, 0);
        if (nameBytes < 0 || nameBytes >= record.byteSize()) {
            return null;
        }
        byte[] name = record.asSlice(1, nameBytes).toArray(ValueLayout.JAVA_BYTE);
        return new Attach(new String(name, StandardCharsets.UTF_8), record.asSlice(1 + nameBytes));
    }
}
