package io.kvmessenger.kvlayout;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import org.junit.jupiter.api.Test;

class PageSpanTest {
    private static final int TOKEN_MAX = 13;

    private static boolean contains(PageSpan span, int page) {
        return page >= span.fromPage() && page < span.toPage();
    }

    @Test
    void shouldAgreeWithCountingTokenByTokenForAllSmallRanges() {
        for (int pageTokens = 1; pageTokens <= 5; pageTokens++) {
            for (int to = 0; to <= TOKEN_MAX; to++) {
                PageSpan filled = PageSpan.filledBy(to, pageTokens);
                for (int page = 0; page <= TOKEN_MAX; page++) {
                    assertThat(contains(filled, page)).isEqualTo((page + 1) * pageTokens <= to);
                }
                for (int from = 0; from <= to; from++) {
                    PageSpan touched = PageSpan.touchedBy(from, to, pageTokens);
                    boolean[] holdsToken = new boolean[TOKEN_MAX + 1];
                    for (int token = from; token < to; token++) {
                        holdsToken[token / pageTokens] = true;
                    }
                    for (int page = 0; page <= TOKEN_MAX; page++) {
                        assertThat(contains(touched, page)).isEqualTo(holdsToken[page]);
                    }
                }
            }
        }
    }

    /** Every way to cut up to 9 tokens into chunks: bit i of {@code cuts} ends a chunk after token i. */
    @Test
    void shouldSendEachPageWithExactlyOneChunkAndNeverBeforeItIsFilled() {
        for (int pageTokens = 1; pageTokens <= 4; pageTokens++) {
            for (int tokens = 1; tokens <= 9; tokens++) {
                for (int cuts = 0; cuts < 1 << (tokens - 1); cuts++) {
                    int nextPage = 0;
                    int from = 0;
                    for (int to = 1; to <= tokens; to++) {
                        boolean last = to == tokens;
                        if (last || (cuts >> (to - 1) & 1) == 1) {
                            PageSpan span = PageSpan.sentWith(from, to, last, pageTokens);
                            assertThat(span.fromPage()).isEqualTo(nextPage);
                            assertThat(Math.min(span.toPage() * pageTokens, tokens))
                                    .isLessThanOrEqualTo(to);
                            nextPage = span.toPage();
                            from = to;
                        }
                    }
                    assertThat(nextPage).isEqualTo(PageSpan.pagesFor(tokens, pageTokens));
                }
            }
        }
    }

    @Test
    void shouldRefuseRangesThatAreNone() {
        assertThatThrownBy(() -> PageSpan.touchedBy(3, 2, 16))
                .hasMessage("token range is [3, 2), expected 0 <= from <= to");
        assertThatThrownBy(() -> PageSpan.filledBy(3, 0)).hasMessage("pageTokens is 0, expected at least 1");
        assertThatThrownBy(() -> new PageSpan(2, 1)).hasMessage("page span is [2, 1), expected 0 <= from <= to");
    }
}
