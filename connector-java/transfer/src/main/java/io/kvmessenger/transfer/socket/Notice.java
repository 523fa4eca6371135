package io.kvmessenger.transfer.socket;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;

import io.kvmessenger.transfer.TransferFault;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;

/** The last record on a control stream: why its sender ends the link. A value. */
public record Notice(TransferFault fault, String detail) {
    private static final int DETAIL_MAX_BYTES = 1024;

    public MemorySegment encode() {
        byte[] text = detail.getBytes(StandardCharsets.UTF_8);
        int lengthBytes = Math.min(text.length, DETAIL_MAX_BYTES);
        byte[] bytes = new byte[1 + lengthBytes];
        bytes[0] = (byte) code(fault);
        System.arraycopy(text, 0, bytes, 1, lengthBytes);
        return MemorySegment.ofArray(bytes);
    }

    /** Decodes a record; a malformed one is itself a protocol fault. */
    public static Notice parse(MemorySegment record) {
        if (record.byteSize() == 0) {
            return new Notice(TransferFault.PROTOCOL, "the peer ended the link with an empty notice");
        }
        byte[] bytes = record.toArray(JAVA_BYTE);
        String detail = new String(bytes, 1, bytes.length - 1, StandardCharsets.UTF_8);
        for (TransferFault fault : TransferFault.values()) {
            if (code(fault) == bytes[0]) {
                return new Notice(fault, detail);
            }
        }
        return new Notice(TransferFault.PROTOCOL, "the peer ended the link with unknown code " + bytes[0]);
    }

    /** Wire codes, independent of the enum's order. */
    private static int code(TransferFault fault) {
        return switch (fault) {
            case UNREACHABLE -> 1;
            case PEER_CLOSED -> 2;
            case NOT_ADMITTED -> 3;
            case WRITE_REFUSED -> 4;
            case PROTOCOL -> 5;
            case DISCONNECTED -> 6;
            case READ_REFUSED -> 7;
            case COPY_FAILED -> 8;
        };
    }
}
