package io.kvmessenger.messenger;

import io.kvmessenger.messenger.wire.Prompt;

/** A decoder-first prompt as it stands in frames. Pure. */
final class PromptWire {
    private PromptWire() {}

    static Prompt encode(EngineCommand.Prompt prompt) {
        Prompt.Builder wire =
                Prompt.newBuilder().setCacheSalt(prompt.cacheSalt()).setPriority(prompt.priority());
        for (int token : prompt.tokenIds()) {
            wire.addTokenIds(token);
        }
        return wire.build();
    }

    static EngineCommand.Prompt decode(Prompt wire) {
        return new EngineCommand.Prompt(
                wire.getTokenIdsList().stream().mapToInt(Integer::intValue).toArray(),
                wire.getCacheSalt(),
                wire.getPriority());
    }
}
