package io.kvmessenger.messenger.wire;

import io.kvmessenger.messenger.port.EngineCommand;

/** Encodes a decoder's grant. Pure functions. */
public final class GrantWire {
    private GrantWire() {}

    /**
     * @param imm for the prefiller's transfer engine
     * @param contextRequested the bits of the kinds of context rows that the engine requests in addition to those that
     *     always go
     * @param prompt for the prefiller's engine; {@link EngineCommand.Prompt#NONE} when it has it already
     */
    public static Grant.Builder encode(
            EngineCommand.Fetch ask,
            long grantId,
            int imm,
            int contextRequested,
            int checksumInterval,
            EngineCommand.Prompt prompt) {
        Grant.Builder grant = Grant.newBuilder()
                .setTransferId(ask.transferId())
                .setGrantId(grantId)
                .setImm(imm)
                .setPromptTokens(ask.promptTokens())
                .setFirstToken(ask.firstToken())
                .setContextSlot(ask.contextSlot() + 1)
                .setContextRequested(contextRequested)
                .setChecksumInterval(checksumInterval)
                .setPromptDigest(ask.promptDigest());
        for (int[] pages : ask.pages()) {
            Grant.PageList.Builder list = grant.addGroupsBuilder();
            for (int page : pages) {
                list.addPageIndices(page);
            }
        }
        if (!prompt.absent()) {
            grant.setPrompt(PromptWire.encode(prompt));
        }
        return grant;
    }
}
