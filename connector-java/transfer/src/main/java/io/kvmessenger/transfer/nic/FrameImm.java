package io.kvmessenger.transfer.nic;

import io.kvmessenger.transfer.Imm;

/** The immediate of a frame: slot 0, which no window has, and in place of the weight the slab's number plus one. */
final class FrameImm {
    private FrameImm() {}

    static int of(int slab) {
        return Imm.withWeight(Imm.NONE, slab + 1);
    }

    static boolean isFrame(int imm) {
        return Imm.slot(imm) == 0 && Imm.weight(imm) > 0;
    }

    static int slab(int imm) {
        return Imm.weight(imm) - 1;
    }
}
