package io.kvmessenger.specdecode;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import com.fasterxml.jackson.jr.ob.JSON;
import java.io.IOException;
import java.io.InputStream;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** The cases are Python's as well: {@code python/tests/test_last_token.py} reads the same table. */
class LastTokenRuleTest {
    private static final int MODULES_MAX = 5;
    private static final int PROMPT_TOKENS_MAX = 40;

    private static List<Map<String, Object>> rows(String name) throws IOException {
        try (InputStream table = LastTokenRuleTest.class.getResourceAsStream("/last-token-rule.json")) {
            return ((List<?>) JSON.std.mapFrom(table).get(name))
                    .stream().map(LastTokenRuleTest::row).toList();
        }
    }

    @SuppressWarnings("unchecked") // jackson-jr gives Map<String, Object> for every object
    private static Map<String, Object> row(Object value) {
        return (Map<String, Object>) value;
    }

    private static LastTokenRule rule(Map<String, Object> row) {
        return new LastTokenRule(
                (Boolean) row.get("state"), (Integer) row.get("draftModules"), (Boolean) row.get("leavesOut"));
    }

    @Test
    void shouldShareAPromptAsTheTableSays() throws IOException {
        List<Map<String, Object>> cases = rows("cases");
        assertThat(cases).hasSizeGreaterThanOrEqualTo(24);
        for (Map<String, Object> row : cases) {
            int promptTokens = (Integer) row.get("promptTokens");
            assertThat(rule(row).sentTokens(promptTokens)).as("%s", row).isEqualTo(row.get("sentTokens"));
            assertThat(rule(row).resumeToken(promptTokens)).as("%s", row).isEqualTo(row.get("resumeToken"));
        }
    }

    @Test
    void shouldRefuseWhatNoSideCanDo() throws IOException {
        for (Map<String, Object> row : rows("refused")) {
            assertThatThrownBy(() -> rule(row).sentTokens((Integer) row.get("promptTokens")))
                    .as("%s", row)
                    .isInstanceOf(IllegalArgumentException.class)
                    .hasMessageContaining((String) row.get("sentence"));
        }
    }

    /** What a decoder takes over is final: each module's KV there is made of tokens that the prefiller knows. */
    @Test
    void shouldResumeWhereAllThatArrivesIsFinalAndNoTokenEarlier() {
        for (int modules = 0; modules <= MODULES_MAX; modules++) {
            for (boolean leavesOut : new boolean[] {false, true}) {
                for (int promptTokens = 1; promptTokens <= PROMPT_TOKENS_MAX; promptTokens++) {
                    LastTokenRule rule = new LastTokenRule(false, modules, leavesOut);
                    int resume = rule.resumeToken(promptTokens);
                    assertThat(resume).isEqualTo(finalTokens(modules, leavesOut, promptTokens));
                    assertThat(resume).isLessThan(promptTokens).isLessThanOrEqualTo(rule.sentTokens(promptTokens));
                }
            }
        }
    }

    /** By trying each token: how many, from the first on, are final in the model and all modules, the last one left out. */
    private static int finalTokens(int modules, boolean leavesOut, int promptTokens) {
        int known = promptTokens - (leavesOut ? 1 : 0);
        int token = 0;
        while (token < promptTokens - 1 && readsWithin(token, modules, known)) {
            token++;
        }
        return token;
    }

    private static boolean readsWithin(int token, int modules, int known) {
        for (int module = 0; module <= modules; module++) { // the model itself reads the token, and no further
            if (token + module >= known) {
                return false;
            }
        }
        return true;
    }

    /** Nothing else may be sent of a state than what the decoder goes on from. */
    @Test
    void shouldResumeAStateWhereItEnds() {
        for (int promptTokens = 2; promptTokens <= PROMPT_TOKENS_MAX; promptTokens++) {
            assertThat(LastTokenRule.STATE.resumeToken(promptTokens))
                    .isEqualTo(LastTokenRule.STATE.sentTokens(promptTokens))
                    .isEqualTo(promptTokens - 1);
        }
        assertThat(LastTokenRule.STATE.resumeToken(1)).isZero();
    }
}
