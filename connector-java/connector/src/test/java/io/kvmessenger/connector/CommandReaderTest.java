package io.kvmessenger.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.messenger.port.ComparisonOutcome;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.PullOutcome;
import io.kvmessenger.messenger.port.SourcePrice;
import io.kvmessenger.messenger.port.TransferKey;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalDouble;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
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

    @Test
    void shouldReadWhatAPullHasWaitedFor() {
        String fetch = """
            {"commands":[{"do":"fetch","request":"d","transfer":"t","prefillers":[],"promptTokens":40,"firstToken":0,
             "groups":[],"limitMillis":0%s}]}\
            """;
        assertThat(read(fetch.formatted(",\"answerMicros\":6,\"pagesMicros\":7")))
                .singleElement()
                .returns(new EngineCommand.PullWaits(6_000, 7_000), command -> ((EngineCommand.Fetch) command).waits());
        assertThat(read(fetch.formatted("")))
                .singleElement()
                .returns(EngineCommand.PullWaits.NONE, command -> ((EngineCommand.Fetch) command).waits());
    }

    /** The end of a request repeats its name, and an end that fits into no poll would leak the request's pages. */
    @ParameterizedTest
    @ValueSource(
            strings = {
                "announce",
                "prefillEnded",
                "fetch",
                "abandon",
                "reportEnd",
                "computed",
                "chunk",
                "ask",
                "offer",
                "withdraw"
            })
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
    void shouldReadWhatTokensTake() {
        assertThat(read("""
            {"commands":[{"do":"prices","computePicosPerToken":1500,"sources":[
             {"source":"h:9","deadMillis":1,"openMicros":2,"answerMicros":3,"queueMicros":4,"fixedMicros":5,
              "picosPerToken":6500,"tokensMin":7,"tokensMax":8,"knownMillis":9}]},{"do":"prices","sources":[]}]}\
            """))
                .containsExactly(
                        new EngineCommand.Prices(
                                List.of(new SourcePrice(
                                        "h:9", 1_000_000, 2_000, 3_000, 4_000, 5_000, 6.5, 7, 8, 9_000_000)),
                                OptionalDouble.of(1.5)),
                        new EngineCommand.Prices(List.of(), OptionalDouble.empty()));
    }

    @Test
    void shouldReadQuestionsForCachedPrefixesAndTheirAnswers() {
        assertThat(read("""
            {"commands":[
             {"do":"ask","request":"d","transfer":"t","promptDigest":"ab","prefillers":[{"host":"h","port":9}],
              "promptTokenIds":[1,2],"cacheSalt":"s","priority":-2,"limitMillis":250},
             {"do":"offer","request":"o","transfer":"t","promptDigest":"ab","asked":true,"heldTokens":32,
              "groups":[{"firstPage":0,"pages":[3,1]}],"reason":""},
             {"do":"offer","request":"o","transfer":"t","promptDigest":"ab","heldTokens":0,"groups":[],"reason":"busy"},
             {"do":"withdraw","request":"o"}]}\
            """))
                .satisfiesExactly(
                        ask -> assertThat((EngineCommand.Ask) ask)
                                .returns("d", EngineCommand.Ask::request)
                                .returns(new TransferKey("t", "ab"), EngineCommand.Ask::transfer)
                                .returns(new EngineCommand.PrefillerAddress("h", 9, ""), EngineCommand.Ask::source)
                                .returns(250_000_000L, EngineCommand.Ask::limitNs)
                                .returns("s", a -> a.prompt().cacheSalt())
                                .returns(-2, a -> a.prompt().priority())
                                .satisfies(
                                        a -> assertThat(a.prompt().tokenIds()).containsExactly(1, 2)),
                        held -> assertThat((EngineCommand.Offer) held)
                                .returns("o", EngineCommand.Offer::request)
                                .returns(new TransferKey("t", "ab"), EngineCommand.Offer::transfer)
                                .returns(true, EngineCommand.Offer::asked)
                                .returns(32, EngineCommand.Offer::heldTokens)
                                .returns(OfferOutcome.HELD, EngineCommand.Offer::outcome)
                                .satisfies(offer -> assertThat(
                                                offer.pages().getFirst().indices())
                                        .containsExactly(3, 1)),
                        none -> assertThat((EngineCommand.Offer) none)
                                .returns(false, EngineCommand.Offer::asked)
                                .returns(OfferOutcome.BUSY, EngineCommand.Offer::outcome)
                                .returns(List.of(), EngineCommand.Offer::pages),
                        withdraw -> assertThat(withdraw).isEqualTo(new EngineCommand.Withdraw("o")));
    }

    /** Each field of the commands for cached prefixes is demanded, and named when it is wrong. */
    @ParameterizedTest
    @CsvSource(delimiter = '|', textBlock = """
            ask | request | 3
            ask | transfer | 3
            ask | prefillers | "h:9"
            ask | promptTokenIds | "1"
            ask | limitMillis | "soon"
            offer | request | 3
            offer | transfer | 3
            offer | heldTokens | -1
            offer | groups | 3
            withdraw | request | 3
            """)
    void shouldNameTheFieldOfAQuestionThatIsMissingOrWrong(String kind, String field, String wrong) {
        Map<String, String> fields = new LinkedHashMap<>();
        fields.put("request", "\"o\"");
        if (!kind.equals("withdraw")) {
            fields.put("transfer", "\"t\"");
            fields.put("promptDigest", "\"ab\"");
        }
        if (kind.equals("ask")) {
            fields.put("prefillers", "[{\"host\":\"h\",\"port\":9}]");
            fields.put("promptTokenIds", "[1]");
            fields.put("limitMillis", "9");
        } else if (kind.equals("offer")) {
            fields.put("heldTokens", "16");
            fields.put("groups", "[{\"firstPage\":0,\"pages\":[3]}]");
        }
        assertThat(read(commandOf(kind, fields))).hasSize(1);
        fields.put(field, wrong);
        assertRefused(commandOf(kind, fields), field + " is ");
        fields.remove(field);
        assertRefused(commandOf(kind, fields), field + " is missing");
    }

    private static String commandOf(String kind, Map<String, String> fields) {
        String rest = fields.entrySet().stream()
                .map(field -> ",\"" + field.getKey() + "\":" + field.getValue())
                .collect(Collectors.joining());
        return "{\"commands\":[{\"do\":\"" + kind + "\"" + rest + "}]}";
    }

    @Test
    void shouldNameTheReasonsThatAnEngineMayHaveToOfferNothing() {
        String nothing = "{\"commands\":[{\"do\":\"offer\",\"request\":\"o\",\"transfer\":\"t\",\"heldTokens\":0%s}]}";
        assertRefused(
                nothing.formatted(",\"reason\":\"tired\""),
                "offer.reason is 'tired', expected not_held, busy, misfit or unavailable");
        assertRefused(nothing.formatted(",\"reason\":\"held\""), "offer.reason is 'held', expected not_held");
        assertRefused(nothing.formatted(",\"reason\":\"late\""), "offer.reason is 'late', expected not_held");
        assertRefused(nothing.formatted(""), "reason is missing");
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
