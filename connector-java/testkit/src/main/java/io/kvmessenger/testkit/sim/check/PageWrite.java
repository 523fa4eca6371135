package io.kvmessenger.testkit.sim.check;

/**
 * A page of one layer, a part of one, or adjacent pages of several layers, in flight from a prefiller's memory to a
 * decoder's. A value.
 *
 * @param source process that writes: name and incarnation
 * @param target process that is written to
 * @param sourceRank in the writing process's geometry
 * @param targetRank in the target process's geometry
 * @param imm slot, generation and weight that the write carries
 */
public record PageWrite(
        long id,
        String source,
        String target,
        int imm,
        int sourceRank,
        long sourceOffset,
        int targetRank,
        long targetOffset,
        int lengthBytes) {}
