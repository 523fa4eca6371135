package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.wire.Checksums;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * A prefiller's checksums of the pages of one grant, in order of arrival. State only, owned by the messenger's thread.
 *
 * <p>A long prompt has a write for each layer of each of its chunks: some hundred thousand. What many writes share, the
 * place and the shape of a layer's pages, is stored once; each write adds {@value #WORDS} ints.
 */
final class ReportedChecksums {
    private static final int WORDS = 6;
    private static final int FIRST_WRITES = 16;

    private final Map<Checksums.Write, Integer> shapeIndices = new HashMap<>();
    private final List<Checksums.Write> shapes = new ArrayList<>();
    private int[] words = {};
    private int count;

    void add(Checksums.Write write) {
        Checksums.Write shape = write.toBuilder()
                .clearFromPart()
                .clearPartCount()
                .clearWeight()
                .clearFirstSummed()
                .clearCrc32C()
                .build();
        Integer index = shapeIndices.putIfAbsent(shape, shapes.size());
        if (index == null) {
            index = shapes.size();
            shapes.add(shape);
        }
        int at = count * WORDS;
        if (at == words.length) {
            words = Arrays.copyOf(
                    words, Math.max(FIRST_WRITES * WORDS, words.length + words.length / 2 / WORDS * WORDS));
        }
        words[at] = index;
        words[at + 1] = write.getFromPart();
        words[at + 2] = write.getPartCount();
        words[at + 3] = write.getWeight();
        words[at + 4] = write.getFirstSummed();
        words[at + 5] = write.getCrc32C();
        count++;
    }

    Checksums.Write get(int position) {
        int at = position * WORDS;
        return shapes.get(words[at]).toBuilder()
                .setFromPart(words[at + 1])
                .setPartCount(words[at + 2])
                .setWeight(words[at + 3])
                .setFirstSummed(words[at + 4])
                .setCrc32C(words[at + 5])
                .build();
    }

    int count() {
        return count;
    }

    /** Number of distinct places and shapes. */
    int shapeCount() {
        return shapes.size();
    }

    /** Length in bytes of the part that grows with the prompt. */
    long lengthBytes() {
        return (long) words.length * Integer.BYTES;
    }
}
