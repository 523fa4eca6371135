package io.kvmessenger.messenger.session;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.SplittableRandom;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class SieveTest {
    private static final int SEEDS = 500;
    private static final int STEPS = 200;

    /** The paper's queue as a plain list, oldest first, with the hand as an index. */
    private static final class Plain {
        final List<Integer> entries = new ArrayList<>();
        final Set<Integer> used = new HashSet<>();
        private int hand;

        void remove(Integer entry) {
            int at = entries.indexOf(entry);
            if (at >= 0) {
                entries.remove(at);
                used.remove(entry);
                hand -= at < hand ? 1 : 0;
                hand = hand == entries.size() ? 0 : hand;
            }
        }

        Integer next(Set<Integer> busy) {
            if (busy.containsAll(entries)) {
                return null;
            }
            while (true) {
                Integer entry = entries.get(hand);
                hand = (hand + 1) % entries.size();
                if (!busy.contains(entry) && !used.remove(entry)) {
                    return entry;
                }
            }
        }
    }

    @Test
    void shouldChooseAsThePaperDoes() {
        for (long seed = 1; seed <= SEEDS; seed++) {
            SplittableRandom random = new SplittableRandom(seed);
            Sieve<Integer> sieve = new Sieve<>();
            Plain plain = new Plain();
            Set<Integer> busy = new HashSet<>();
            for (int step = 0; step < STEPS; step++) {
                Integer any = random.nextInt(step + 1);
                switch (random.nextInt(6)) {
                    case 0, 1 -> {
                        sieve.add(step);
                        plain.entries.add(step);
                    }
                    case 2 -> {
                        sieve.use(any);
                        if (plain.entries.contains(any)) {
                            plain.used.add(any);
                        }
                    }
                    case 3 -> {
                        sieve.remove(any);
                        plain.remove(any);
                    }
                    case 4 -> {
                        if (!busy.remove(any)) {
                            busy.add(any);
                        }
                    }
                    default ->
                        assertThat(sieve.next(entry -> !busy.contains(entry)))
                                .as("seed " + seed + ", step " + step)
                                .isEqualTo(plain.next(busy));
                }
                assertThat(sieve.size()).isEqualTo(plain.entries.size());
            }
        }
    }

    /** Those that are used again stay while others come and go once: what SIEVE is for. */
    @Test
    void shouldKeepWhatIsUsedAgain() {
        int kept = 50;
        Sieve<Integer> sieve = new Sieve<>();
        IntStream.range(0, kept).forEach(sieve::add);
        for (int passing = kept; passing < 100 * kept; passing++) {
            IntStream.range(0, kept).forEach(sieve::use);
            sieve.add(passing);
            sieve.remove(sieve.next(_ -> true));
        }
        List<Integer> left = new ArrayList<>();
        for (Integer next = sieve.next(_ -> true); next != null; next = sieve.next(_ -> true)) {
            left.add(next);
            sieve.remove(next);
        }
        assertThat(left.stream().filter(entry -> entry < kept).count()).isGreaterThanOrEqualTo(kept - 1L);
    }
}
