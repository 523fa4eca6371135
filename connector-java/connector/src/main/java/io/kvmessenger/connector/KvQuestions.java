package io.kvmessenger.connector;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineIntake;
import io.kvmessenger.messenger.port.EventSink;
import io.kvmessenger.messenger.port.TransferKey;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Brings the questions of peers to an engine that polls its messenger on the thread of its prefix cache: as events.
 *
 * <p>Called by the messenger's thread. It takes no prompts to compute, and withdraws no question: the answer to one that
 * is over is released at once.
 */
final class KvQuestions implements EngineIntake {
    /** At eleven characters a token, and with a cache salt that is all escaped, an event fits into the smallest poll. */
    static final int EVENT_TOKENS_MAX = 4096;

    private final EventSink sink;

    KvQuestions(EventSink sink) {
        this.sink = sink;
    }

    @Override
    public boolean takesPrompts() {
        return false;
    }

    @Override
    public boolean takesQuestions() {
        return true;
    }

    @Override
    public void enqueue(TransferKey transfer, EngineCommand.Prompt prompt) {
        throw new AssertionError("a prompt to compute for transfer " + transfer.id());
    }

    /** One event or several: each has a part of the prompt, in order, and the number of all its tokens. */
    @Override
    public void ask(TransferKey transfer, EngineCommand.Prompt prompt) {
        int[] tokens = prompt.tokenIds();
        int first = 0;
        do {
            int end = Math.min(first + EVENT_TOKENS_MAX, tokens.length);
            sink.add(part(transfer, prompt, Arrays.copyOfRange(tokens, first, end)));
            first = end;
        } while (first < tokens.length);
    }

    private static Map<String, Object> part(TransferKey transfer, EngineCommand.Prompt prompt, int[] tokens) {
        Map<String, Object> event = new LinkedHashMap<>();
        event.put("event", "asked");
        event.put("transfer", transfer.id());
        event.put("promptDigest", transfer.digest());
        event.put("cacheSalt", prompt.cacheSalt());
        event.put("tokenCount", prompt.tokenIds().length);
        event.put("tokenIds", tokens);
        return event;
    }

    @Override
    public void endAsk(TransferKey transfer) {}
}
