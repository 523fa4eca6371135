package io.kvmessenger.messenger;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.EngineCommand.Chunk;
import io.kvmessenger.messenger.port.EngineCommand.PrefillOutcome;
import io.kvmessenger.messenger.port.EngineCommand.PrefillerAddress;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextSlots;
import io.kvmessenger.transfer.TransferRequest.PageList;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** A prefiller and a decoder with several requests under one transfer id. */
abstract class SameIdPair extends MessengerPair {
    static final String ID = "one-id";
    static final TransferKey FIRST = new TransferKey(ID, "aa");
    static final TransferKey SECOND = new TransferKey(ID, "bb");
    static final TransferKey THIRD = new TransferKey(ID, "cc");
    static final TransferKey FOURTH = new TransferKey(ID, "dd");
    static final List<PrefillerAddress> PREFILLER = List.of(new PrefillerAddress("host", 7, ""));
    static final int[] FIRST_PAGES = {5, 6};
    static final int[] SECOND_PAGES = {7, 2};

    void fetch(String request, TransferKey transfer, int firstPage) {
        fetch(request, transfer, firstPage, EngineCommand.Prompt.NONE);
    }

    void fetch(String request, TransferKey transfer, int firstPage, EngineCommand.Prompt prompt) {
        decoder.cache.onCommand(new EngineCommand.Fetch(
                request,
                transfer.id(),
                PREFILLER,
                PROMPT_TOKENS,
                0,
                List.of(new int[] {firstPage, firstPage + 1}),
                ContextSlots.NO_SLOT,
                List.of(),
                1_000_000,
                transfer.digest(),
                prompt,
                EngineCommand.PullWaits.NONE));
        carry();
    }

    void announce(String request, TransferKey transfer) {
        prefiller.cache.onCommand(new EngineCommand.Announce(request, transfer.id(), transfer.digest()));
        carry();
    }

    void compute(String request, TransferKey transfer, int... pages) {
        prefiller.cache.onCommand(new EngineCommand.Computed(new Chunk(
                request,
                transfer.id(),
                PROMPT_TOKENS,
                0,
                0,
                PROMPT_TOKENS,
                List.of(new EngineCommand.ChunkPages(0, pages)),
                transfer.digest())));
        carry();
    }

    void finish(String request) {
        end(request, PrefillOutcome.FINISHED, ContextSlots.NO_SLOT);
        carry();
    }

    void completeAllWrites() {
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
    }

    void pass(long ns) {
        for (long passed = 0; passed < ns; passed += LIMITS.heartbeatNs() / 2) {
            nowNs += LIMITS.heartbeatNs() / 2;
            carry();
        }
    }

    /** Which pages of the prefiller went to which of the decoder, as "5>1". */
    Set<String> pagesSent() {
        return prefiller.transfer.requests.stream()
                .map(request -> (PagedWrites) request)
                .flatMap(write -> {
                    int[] source = pages(write.sourcePages());
                    int[] target = pages(write.targetPages());
                    return IntStream.range(0, source.length).mapToObj(i -> source[i] + ">" + target[i]);
                })
                .collect(Collectors.toSet());
    }

    static int[] pages(PageList grid) {
        return Arrays.copyOfRange(grid.indices(), grid.from(), grid.from() + grid.count());
    }
}
