package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.messenger.port.ComparisonOutcome;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.PullOutcome;
import io.kvmessenger.messenger.port.TransferKey;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class CommandReaderTest {
    @Test
    void shouldReadEveryCommandOfTheBoundary() {
        assertThat(read("""
            {"commands":[
             {"do":"step","step":7,"counterStart":12,"chunks":[{"request":"p","transfer":"t","promptTokens":40,
              "cachedTokens":16,"firstToken":16,"endToken":40,"groups":[{"firstPage":2,"pages":[3,1]},{"firstPage":1,"pages":[9]}],"promptDigest":"ab"}]},
             {"do":"stepEnded","step":7,"counterEnd":18446744073709551615},
             {"do":"stepFailed","step":8},
             {"do":"announce","request":"p","transfer":"t","promptDigest":"ab"},
             {"do":"computed","request":"p","transfer":"t","promptTokens":40,"endToken":32,"groups":[{"firstPage":0,"pages":[3,1]}],"promptDigest":""},
             {"do":"prefillEnded","request":"p","outcome":"aborted"},
             {"do":"fetch","request":"d","transfer":"t","prefillers":[{"host":"h","port":9},{"host":"i","port":10,"engineId":"p"}],
              "promptTokens":40,"firstToken":0,"groups":[{"pages":[5]},{"pages":[8,7]}],"limitMillis":250,"promptDigest":"ab","promptTokenIds":[1],
              "contextSlot":4,"contextKinds":["logits"],"cacheSalt":"s","priority":-2},
             {"do":"expect","transfer":"t","promptDigest":"ab","prefillers":[{"host":"h","port":9}]},
             {"do":"decline","transfer":"t","prefillers":[]},
             {"do":"reject","transfer":"t","prefillers":[{"host":"h","port":9}]},
             {"do":"abandon","request":"d"}]}\
            """))
                .satisfiesExactly(
                        step -> assertThat(((EngineCommand.Step) step).chunks().getFirst())
                                .returns(2, chunk -> chunk.pages().size())
                                .returns(2, chunk -> chunk.pages().getFirst().firstPage())
                                .returns("ab", EngineCommand.Chunk::promptDigest)
                                .satisfies(chunk -> assertThat(
                                                chunk.pages().getFirst().indices())
                                        .containsExactly(3, 1)),
                        ended -> assertThat(ended).isEqualTo(new EngineCommand.StepEnded(7, -1)),
                        failed -> assertThat(failed).isEqualTo(new EngineCommand.StepFailed(8)),
                        announce -> assertThat(announce).isEqualTo(new EngineCommand.Announce("p", "t", "ab")),
                        computed -> assertThat(((EngineCommand.Computed) computed)
                                        .chunk()
                                        .endToken())
                                .isEqualTo(32),
                        ended -> assertThat(ended)
                                .isEqualTo(new EngineCommand.PrefillEnded("p", EngineCommand.PrefillOutcome.ABORTED)),
                        fetch -> assertThat(((EngineCommand.Fetch) fetch))
                                .returns(3, EngineCommand.Fetch::pageCount)
                                .returns(250_000_000L, EngineCommand.Fetch::limitNs)
                                .returns(
                                        List.of(
                                                new EngineCommand.PrefillerAddress("h", 9, ""),
                                                new EngineCommand.PrefillerAddress("i", 10, "p")),
                                        EngineCommand.Fetch::prefillers)
                                .returns("ab", EngineCommand.Fetch::promptDigest)
                                .returns(4, EngineCommand.Fetch::contextSlot)
                                .returns(List.of("logits"), EngineCommand.Fetch::contextKinds)
                                .returns("s", f -> f.prompt().cacheSalt())
                                .returns(-2, f -> f.prompt().priority()),
                        expect -> assertThat(expect)
                                .isEqualTo(new EngineCommand.Expect(
                                        new TransferKey("t", "ab"),
                                        List.of(new EngineCommand.PrefillerAddress("h", 9, "")))),
                        decline -> assertThat(decline)
                                .isEqualTo(new EngineCommand.Decline(new TransferKey("t", ""), List.of())),
                        reject -> assertThat(reject)
                                .isEqualTo(new EngineCommand.Reject(
                                        "t", List.of(new EngineCommand.PrefillerAddress("h", 9, "")))),
                        abandon -> assertThat(abandon).isEqualTo(new EngineCommand.Abandon("d")));
    }

    /** The end of a request repeats its name, and an end that fits into no poll would leak the request's pages. */
    @ParameterizedTest
    @ValueSource(strings = {"announce", "prefillEnded", "fetch", "abandon", "reportEnd", "computed", "chunk"})
    void shouldRefuseARequestWhoseNameIsLongerThanOursAre(String kind) {
        String named = "\"request\":\"" + "x".repeat(CommandReader.REQUEST_LENGTH_MAX + 1) + "\"";
        String command = kind.equals("chunk")
                ? "{\"do\":\"step\",\"step\":1,\"counterStart\":0,\"chunks\":[{" + named + "}]}"
                : "{\"do\":\"" + kind + "\"," + named + "}";
        assertRefused("{\"commands\":[" + command + "]}", "a string of at most 64 characters is expected");
        assertThatThrownBy(() -> CommandReader.requireFenceable(List.of("r", "x".repeat(65))))
                .hasMessageContaining("more than 64 characters");
    }

    @Test
    void shouldCutAWrongValueInTheError() {
        assertThatThrownBy(() -> read("{\"commands\":\"" + "x".repeat(1 << 20) + "\"}"))
                .satisfies(refusal -> assertThat(refusal.getMessage()).hasSizeLessThan(500));
    }

    @Test
    void shouldReadThatAnEndWasNotHeard() {
        assertThat(read("{\"commands\":[{\"do\":\"reportEnd\",\"request\":\"d\"}]}"))
                .containsExactly(new EngineCommand.ReportEnd("d"));
    }

    @Test
    void shouldReadWhatTheEngineHasCompared() {
        assertThat(read("""
            {"commands":[
             {"do":"compared","outcome":"different","differenceMillionths":1700000,"prefillers":[{"host":"h","port":9}]},
             {"do":"refuted","fetches":2}]}\
            """))
                .containsExactly(
                        new EngineCommand.Compared(
                                ComparisonOutcome.DIFFERENT, 1_700_000, new EngineCommand.PrefillerAddress("h", 9, "")),
                        new EngineCommand.Refuted(2));
    }

    @Test
    void shouldReadWhatPullsCameTo() {
        assertThat(read("""
            {"commands":[
             {"do":"pullEnded","outcome":"arrived","tokens":96,"askMicros":1500,"pullMicros":2000000}]}\
            """))
                .containsExactly(new EngineCommand.PullEnded(PullOutcome.ARRIVED, 96, 1_500_000, 2_000_000_000));
        assertRefused(
                "{\"commands\":[{\"do\":\"pullEnded\",\"outcome\":\"lost\",\"tokens\":1,\"askMicros\":0,\"pullMicros\":0}]}",
                "LOST");
    }

    @Test
    void shouldNameTheFieldThatIsWrong() {
        assertRefused("not json", "submit is not JSON");
        assertRefused("{}", "submit.commands is missing");
        assertRefused("{\"commands\":[{\"do\":\"dance\"}]}", "dance");
        assertRefused("{\"commands\":[{\"do\":\"abandon\",\"request\":3}]}", "request is Integer 3");
        assertRefused(
                "{\"commands\":[{\"do\":\"step\",\"step\":1,\"counterStart\":0,\"chunks\":[{\"request\":\"p\","
                        + "\"transfer\":\"t\",\"promptTokens\":-1}]}]}",
                "promptTokens is Integer -1");
        assertRefused(
                "{\"commands\":[{\"do\":\"stepEnded\",\"step\":1,\"counterEnd\":18446744073709551616}]}",
                "counterEnd is BigInteger 18446744073709551616");
    }

    private static void assertRefused(String json, String sentence) {
        assertThatThrownBy(() -> read(json))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContaining(sentence);
    }

    private static List<EngineCommand> read(String json) {
        return CommandReader.read(RequestJson.parse("submit", json.getBytes(StandardCharsets.UTF_8))
                .objects("commands"));
    }
}
