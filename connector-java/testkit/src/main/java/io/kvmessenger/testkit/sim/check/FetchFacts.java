package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.specdecode.ContextChoice;
import io.kvmessenger.testkit.sim.PromptName;
import java.util.List;
import java.util.stream.IntStream;

/**
 * What a decoder's engine requested. A value.
 *
 * @param transferId name of the prompt ({@link PromptName})
 * @param prefillers names of the nodes that are asked
 * @param pages by group
 * @param contextSlot of its context rows, or {@link io.kvmessenger.specdecode.ContextSlots#NO_SLOT}
 * @param context kinds of rows to expect
 * @param limitNs its own limit, 0 for the messenger's
 */
public record FetchFacts(
        String process,
        String request,
        String transferId,
        List<String> prefillers,
        int promptTokens,
        int firstToken,
        List<List<Integer>> pages,
        int contextSlot,
        ContextChoice context,
        long limitNs) {
    public FetchFacts {
        prefillers = List.copyOf(prefillers);
        pages = pages.stream().map(List::copyOf).toList();
    }

    /** Number of pages of all groups. */
    int pageCount() {
        return pages.stream().mapToInt(List::size).sum();
    }

    /** The nodes at these addresses. */
    public static List<String> hostsOf(List<EngineCommand.PrefillerAddress> prefillers) {
        return prefillers.stream().map(EngineCommand.PrefillerAddress::host).toList();
    }

    /** From a command for a fetch without context rows. */
    public static FetchFacts of(String process, EngineCommand.Fetch fetch) {
        return of(process, fetch, ContextChoice.NONE);
    }

    /** From a command for a fetch with these rows. */
    public static FetchFacts of(String process, EngineCommand.Fetch fetch, ContextChoice context) {
        return new FetchFacts(
                process,
                fetch.request(),
                PromptName.of(fetch.transfer()),
                hostsOf(fetch.prefillers()),
                fetch.promptTokens(),
                fetch.firstToken(),
                fetch.pages().stream()
                        .map(group -> IntStream.of(group).boxed().toList())
                        .toList(),
                fetch.contextSlot(),
                context,
                fetch.limitNs());
    }
}
