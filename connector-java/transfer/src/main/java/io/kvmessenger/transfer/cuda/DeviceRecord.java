package io.kvmessenger.transfer.cuda;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_LONG_UNALIGNED;

import io.kvmessenger.foreign.CudaLayout;
import io.kvmessenger.transfer.device.ExportForm;
import java.lang.foreign.MemorySegment;

/** A target's first record about a region in device memory, in the native byte order of both ends. A value. */
record DeviceRecord(int regionId, ExportForm form) {
    private static final int WORDS = 5;
    private static final long HANDLE_OFFSET = WORDS * (long) Long.BYTES;
    private static final long LENGTH_BYTES = HANDLE_OFFSET + CudaLayout.IPC_HANDLE_SIZE_BYTES;

    MemorySegment encode() {
        MemorySegment out = MemorySegment.ofArray(new byte[(int) LENGTH_BYTES]);
        long[] words = {regionId, form.lengthBytes(), form.offsetBytes(), form.mappedBytes(), form.partCount()};
        for (int i = 0; i < WORDS; i++) {
            out.setAtIndex(JAVA_LONG_UNALIGNED, i, words[i]);
        }
        MemorySegment.copy(
                form.legacyHandle(), 0, out, JAVA_BYTE, HANDLE_OFFSET, (int) CudaLayout.IPC_HANDLE_SIZE_BYTES);
        return out;
    }

    /** Decodes a record; null when malformed or impossible. */
    static DeviceRecord parse(MemorySegment in) {
        if (in.byteSize() != LENGTH_BYTES) {
            return null;
        }
        try {
            return new DeviceRecord(
                    (int) word(in, 0),
                    new ExportForm(
                            word(in, 1),
                            word(in, 2),
                            word(in, 3),
                            Math.toIntExact(word(in, 4)),
                            in.asSlice(HANDLE_OFFSET).toArray(JAVA_BYTE)));
        } catch (IllegalArgumentException | ArithmeticException e) {
            return null;
        }
    }

    private static long word(MemorySegment in, int index) {
        return in.getAtIndex(JAVA_LONG_UNALIGNED, index);
    }
}
