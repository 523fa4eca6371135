package io.kvmessenger.connector;

import io.kvmessenger.messenger.port.ComparisonOutcome;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.Chunk;
import io.kvmessenger.messenger.port.EngineCommand.ChunkPages;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.EngineCommand.Prompt;
import io.kvmessenger.messenger.port.EngineCommand.PullWaits;
import io.kvmessenger.messenger.port.Fields;
import io.kvmessenger.messenger.port.OfferOutcome;
import io.kvmessenger.messenger.port.PullOutcome;
import io.kvmessenger.messenger.port.SourcePrice;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import java.util.Locale;
import java.util.OptionalDouble;
import java.util.concurrent.TimeUnit;

/** Reads the commands of a KV cache (docs/boundary.md) as values. Pure. */
final class CommandReader {
    /**
     * Longest name of a request, which every event about it repeats. Python gives each request a short number: text of a
     * client would have any length.
     */
    static final int REQUEST_LENGTH_MAX = 64;

    /** Longest transfer id or digest that an event may repeat; both sides bound them further. */
    static final int TRANSFER_LENGTH_MAX = 1024;

    /** Longest address of an engine: a host's name and a port. */
    private static final int SOURCE_LENGTH_MAX = 300;

    private static final double PICOS_PER_NANO = 1000;

    private CommandReader() {}

    static List<EngineCommand> read(List<Fields> commands) {
        return commands.stream().map(CommandReader::command).toList();
    }

    /** The answer to a fence, with all requests that it names, has to fit into a poll's buffer. */
    static void requireFenceable(List<String> requests) {
        if (requests.stream().anyMatch(request -> request.length() > REQUEST_LENGTH_MAX)) {
            throw new IllegalArgumentException("fence.requests has a string of more than " + REQUEST_LENGTH_MAX
                    + " characters where shorter ones are expected");
        }
    }

    private static EngineCommand command(Fields fields) {
        return switch (fields.text("do")) {
            case "step" ->
                new EngineCommand.Step(
                        fields.integer("step"),
                        fields.position("counterStart"),
                        fields.objects("chunks").stream()
                                .map(CommandReader::chunk)
                                .toList());
            case "announce" ->
                new EngineCommand.Announce(
                        fields.text("request", REQUEST_LENGTH_MAX),
                        fields.text("transfer"),
                        fields.textIfGiven("promptDigest"));
            case "computed" -> computed(fields);
            case "stepEnded" -> new EngineCommand.StepEnded(fields.integer("step"), fields.position("counterEnd"));
            case "stepFailed" -> new EngineCommand.StepFailed(fields.integer("step"));
            case "prefillEnded" ->
                new EngineCommand.PrefillEnded(
                        fields.text("request", REQUEST_LENGTH_MAX),
                        PrefillOutcome.valueOf(fields.text("outcome").toUpperCase(Locale.ROOT)),
                        contextSlot(fields));
            case "fetch" -> fetch(fields);
            case "expect" -> new EngineCommand.Expect(transfer(fields), prefillers(fields));
            case "decline" -> new EngineCommand.Decline(transfer(fields), prefillers(fields));
            case "reject" -> new EngineCommand.Reject(fields.text("transfer"), prefillers(fields));
            case "compared" ->
                new EngineCommand.Compared(
                        ComparisonOutcome.valueOf(fields.text("outcome").toUpperCase(Locale.ROOT)),
                        fields.integer("differenceMillionths"),
                        prefillers(fields).getFirst());
            case "refuted" -> new EngineCommand.Refuted(fields.integer("fetches"));
            case "pullEnded" -> pullEnded(fields);
            case "prices" -> prices(fields);
            case "ask" -> ask(fields);
            case "offer" -> offer(fields);
            case "withdraw" -> new EngineCommand.Withdraw(fields.text("request", REQUEST_LENGTH_MAX));
            case "abandon" -> new EngineCommand.Abandon(fields.text("request", REQUEST_LENGTH_MAX));
            case "reportEnd" -> new EngineCommand.ReportEnd(fields.text("request", REQUEST_LENGTH_MAX));
            default ->
                throw new IllegalArgumentException("command " + fields.text("do") + " is not one of announce, step, "
                        + "stepEnded, stepFailed, computed, prefillEnded, expect, fetch, decline, reject, abandon, "
                        + "reportEnd, compared, refuted, pullEnded, prices, ask, offer, withdraw");
        };
    }

    private static EngineCommand.PullEnded pullEnded(Fields fields) {
        return new EngineCommand.PullEnded(
                PullOutcome.valueOf(fields.text("outcome").toUpperCase(Locale.ROOT)),
                fields.integer("tokens"),
                TimeUnit.MICROSECONDS.toNanos(fields.integer("askMicros")),
                TimeUnit.MICROSECONDS.toNanos(fields.integer("pullMicros")));
    }

    private static EngineCommand.Prices prices(Fields fields) {
        OptionalDouble compute = fields.has("computePicosPerToken")
                ? OptionalDouble.of(fields.integer("computePicosPerToken") / PICOS_PER_NANO)
                : OptionalDouble.empty();
        List<SourcePrice> sources = fields.objects("sources").stream()
                .map(CommandReader::sourcePrice)
                .toList();
        return new EngineCommand.Prices(sources, compute);
    }

    private static SourcePrice sourcePrice(Fields fields) {
        return new SourcePrice(
                fields.text("source", SOURCE_LENGTH_MAX),
                TimeUnit.MILLISECONDS.toNanos(fields.integer("deadMillis")),
                TimeUnit.MICROSECONDS.toNanos(fields.integer("openMicros")),
                TimeUnit.MICROSECONDS.toNanos(fields.integer("answerMicros")),
                TimeUnit.MICROSECONDS.toNanos(fields.integer("queueMicros")),
                TimeUnit.MICROSECONDS.toNanos(fields.integer("fixedMicros")),
                fields.integer("picosPerToken") / PICOS_PER_NANO,
                fields.count("tokensMin"),
                fields.count("tokensMax"),
                TimeUnit.MILLISECONDS.toNanos(fields.integer("knownMillis")));
    }

    private static TransferKey transfer(Fields fields) {
        String digest = fields.has("promptDigest") ? fields.text("promptDigest", TRANSFER_LENGTH_MAX) : "";
        return new TransferKey(fields.text("transfer", TRANSFER_LENGTH_MAX), digest);
    }

    private static EngineCommand computed(Fields fields) {
        return new EngineCommand.Computed(new Chunk(
                fields.text("request", REQUEST_LENGTH_MAX),
                fields.text("transfer"),
                fields.count("promptTokens"),
                0,
                0,
                fields.count("endToken"),
                chunkPages(fields),
                fields.textIfGiven("promptDigest")));
    }

    private static Chunk chunk(Fields fields) {
        return new Chunk(
                fields.text("request", REQUEST_LENGTH_MAX),
                fields.text("transfer"),
                fields.count("promptTokens"),
                fields.count("cachedTokens"),
                fields.count("firstToken"),
                fields.count("endToken"),
                chunkPages(fields),
                fields.textIfGiven("promptDigest"));
    }

    private static List<ChunkPages> chunkPages(Fields fields) {
        return fields.objects("groups").stream()
                .map(group -> new ChunkPages(group.count("firstPage"), group.counts("pages")))
                .toList();
    }

    private static EngineCommand ask(Fields fields) {
        return new EngineCommand.Ask(
                fields.text("request", REQUEST_LENGTH_MAX),
                transfer(fields),
                prefillers(fields).getFirst(),
                prompt(fields),
                TimeUnit.MILLISECONDS.toNanos(fields.integer("limitMillis")));
    }

    private static EngineCommand offer(Fields fields) {
        String request = fields.text("request", REQUEST_LENGTH_MAX);
        int heldTokens = fields.count("heldTokens");
        return new EngineCommand.Offer(
                request,
                transfer(fields),
                fields.flagIfGiven("asked"),
                heldTokens,
                heldTokens == 0 ? List.of() : chunkPages(fields),
                heldTokens == 0 ? OfferOutcome.answer(fields.text("reason")) : OfferOutcome.HELD);
    }

    private static int contextSlot(Fields fields) {
        return fields.has("contextSlot") ? (int) fields.integer("contextSlot") : ContextSlots.NO_SLOT;
    }

    private static List<PrefillerAddress> prefillers(Fields fields) {
        return fields.objects("prefillers").stream()
                .map(prefiller -> new PrefillerAddress(
                        prefiller.text("host"), prefiller.count("port"), prefiller.textIfGiven("engineId")))
                .toList();
    }

    private static Prompt prompt(Fields fields) {
        return new Prompt(
                fields.counts("promptTokenIds"),
                fields.textIfGiven("cacheSalt"),
                fields.has("priority") ? Math.toIntExact(fields.integer("priority")) : 0);
    }

    private static EngineCommand fetch(Fields fields) {
        return new EngineCommand.Fetch(
                fields.text("request", REQUEST_LENGTH_MAX),
                fields.text("transfer"),
                prefillers(fields),
                fields.count("promptTokens"),
                fields.count("firstToken"),
                fields.objects("groups").stream()
                        .map(group -> group.counts("pages"))
                        .toList(),
                contextSlot(fields),
                fields.textsIfGiven("contextKinds"),
                TimeUnit.MILLISECONDS.toNanos(fields.integer("limitMillis")),
                fields.textIfGiven("promptDigest"),
                fields.has("promptTokenIds") ? prompt(fields) : Prompt.NONE,
                fields.has("answerMicros") ? waits(fields) : PullWaits.NONE);
    }

    private static PullWaits waits(Fields fields) {
        return new PullWaits(
                TimeUnit.MICROSECONDS.toNanos(fields.integer("answerMicros")),
                TimeUnit.MICROSECONDS.toNanos(fields.integer("pagesMicros")));
    }
}
