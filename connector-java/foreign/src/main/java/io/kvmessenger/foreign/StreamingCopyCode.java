package io.kvmessenger.foreign;

import java.io.ByteArrayOutputStream;

/**
 * The machine code of {@link StreamingCopy} for x86_64, in instructions that every such processor has (SSE2).
 *
 * <pre>
 * void copy(const struct { void *sources[4]; void *targets[4]; } *lanes, long lengthBytes)
 *   all eight addresses += lengthBytes; index = -lengthBytes
 *   do
 *     for each lane: 128 bytes from source[index] to target[index], past the caches
 *   while ((index += 128) != 0)
 *   sfence
 * </pre>
 *
 * <p>System V calling convention; only registers that a callee may change are used. Safe from any thread.
 */
final class StreamingCopyCode {
    private static final int RAX = 0;
    private static final int RCX = 1;
    private static final int RDX = 2;
    /** Second argument: the length, then the index, which counts up to zero. */
    private static final int RSI = 6;
    /** First argument: the lanes, then the last target. */
    private static final int RDI = 7;

    private static final int R8 = 8;
    private static final int R9 = 9;
    private static final int R10 = 10;
    private static final int R11 = 11;
    private static final int[] SOURCES = {RAX, RCX, RDX, R8};
    private static final int[] TARGETS = {R9, R10, R11, RDI};

    private static final int VECTOR_BYTES = 16;
    private static final int VECTORS = StreamingCopy.STEP_BYTES / VECTOR_BYTES;

    private final ByteArrayOutputStream code = new ByteArrayOutputStream();

    private StreamingCopyCode() {}

    static byte[] assemble() {
        return new StreamingCopyCode().routine();
    }

    private byte[] routine() {
        emit(0xF3, 0x0F, 0x1E, 0xFA); // endbr64: an indirect call may end here
        for (int lane = 0; lane < SOURCES.length; lane++) {
            loadAddress(SOURCES[lane], lane);
        }
        for (int lane = 0; lane < TARGETS.length; lane++) {
            loadAddress(TARGETS[lane], SOURCES.length + lane);
        }
        for (int lane = 0; lane < SOURCES.length; lane++) {
            addIndex(SOURCES[lane]);
            addIndex(TARGETS[lane]);
        }
        emit(0x48, 0xF7, 0xDE); // neg rsi
        int loop = code.size();
        for (int lane = 0; lane < SOURCES.length; lane++) {
            copyStep(SOURCES[lane], TARGETS[lane]);
        }
        emit(0x48, 0x83, 0xEE, -StreamingCopy.STEP_BYTES); // sub rsi, -128
        jumpUnlessZero(loop);
        emit(0x0F, 0xAE, 0xF8); // sfence: no later store becomes visible before these
        emit(0xC3); // ret
        return code.toByteArray();
    }

    /** {@code mov register, [rdi + 8 * index]}. */
    private void loadAddress(int register, int index) {
        emit(0x48 | high(register) << 2, 0x8B, 0x40 | low(register) << 3 | RDI, index * Long.BYTES);
    }

    /** {@code add register, rsi}. */
    private void addIndex(int register) {
        emit(0x48 | high(register), 0x01, 0xC0 | RSI << 3 | low(register));
    }

    private void copyStep(int source, int target) {
        for (int vector = 0; vector < VECTORS; vector++) {
            emit(0xF3, 0x40 | high(source), 0x0F, 0x6F); // movdqu xmm, [source + rsi + displacement]
            atIndex(vector, source);
        }
        for (int vector = 0; vector < VECTORS; vector++) {
            emit(0x66, 0x40 | high(target), 0x0F, 0xE7); // movntdq [target + rsi + displacement], xmm
            atIndex(vector, target);
        }
    }

    private void atIndex(int vector, int base) {
        emit(0x44 | vector << 3, RSI << 3 | low(base), vector * VECTOR_BYTES);
    }

    private void jumpUnlessZero(int to) {
        emit(0x0F, 0x85);
        int distance = to - (code.size() + Integer.BYTES);
        emit(distance, distance >> 8, distance >> 16, distance >> 24);
    }

    private static int high(int register) {
        return register >> 3;
    }

    private static int low(int register) {
        return register & 7;
    }

    private void emit(int... bytes) {
        for (int value : bytes) {
            code.write(value);
        }
    }
}
