package io.kvmessenger.messenger.wire;

import io.kvmessenger.messenger.port.EngineCommand;

/** Converts a decoder-first prompt to and from its wire form. Pure. */
public final class PromptWire {
    private PromptWire() {}

    public static Prompt encode(EngineCommand.Prompt prompt) {
        Prompt.Builder wire =
                Prompt.newBuilder().setCacheSalt(prompt.cacheSalt()).setPriority(prompt.priority());
        for (int token : prompt.tokenIds()) {
            wire.addTokenIds(token);
        }
        return wire.build();
    }

    public static EngineCommand.Prompt decode(Prompt wire) {
        return new EngineCommand.Prompt(
                wire.getTokenIdsList().stream().mapToInt(Integer::intValue).toArray(),
                wire.getCacheSalt(),
                wire.getPriority());
    }
}
