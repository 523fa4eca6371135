package io.kvmessenger.benchmarks;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.HashSet;
import java.util.Set;
import org.junit.jupiter.api.Test;

class PageDrawTest {
    @Test
    void shouldDrawDifferentPagesOfThePoolInEveryRound() {
        for (int pageCount = 1; pageCount <= 10; pageCount++) {
            PageDraw draw = new PageDraw(10, pageCount, 3);
            for (int round = 0; round < 20; round++) {
                int[] pages = draw.draw();
                Set<Integer> seen = new HashSet<>();
                for (int page : pages) {
                    assertThat(page).isBetween(0, 9);
                    assertThat(seen.add(page)).isTrue();
                }
                assertThat(pages).hasSize(pageCount);
            }
        }
    }

    @Test
    void shouldTouchTheWholePoolInAsManyRoundsAsItNeeds() {
        PageDraw draw = new PageDraw(10, 4, 3);
        Set<Integer> seen = new HashSet<>();
        for (int round = 0; round < 3; round++) {
            for (int page : draw.draw()) {
                seen.add(page);
            }
        }
        assertThat(seen).hasSize(10);
    }

    @Test
    void shouldDrawTheSameForTheSameSeed() {
        PageDraw one = new PageDraw(1000, 400, 7);
        PageDraw other = new PageDraw(1000, 400, 7);
        for (int round = 0; round < 5; round++) {
            assertThat(one.draw()).isEqualTo(other.draw());
        }
    }
}
