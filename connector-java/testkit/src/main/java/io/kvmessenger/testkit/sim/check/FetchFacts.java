package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.testkit.sim.PromptName;
import java.util.List;
import java.util.stream.IntStream;

/**
 * What a decoder's engine asked for. A value.
 *
 * @param transferId name of the prompt ({@link PromptName})
 * @param prefillers names of the nodes that are asked
 * @param pages by group
 * @param contextSlot of its context rows, or {@link io.kvmessenger.messenger.port.ContextRow#NO_SLOT}
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
        long limitNs) {
    public FetchFacts {
        prefillers = List.copyOf(prefillers);
        pages = pages.stream().map(List::copyOf).toList();
    }

    /** Of all groups. */
    int pageCount() {
        return pages.stream().mapToInt(List::size).sum();
    }

    /** The nodes at these addresses. */
    public static List<String> hostsOf(List<EngineCommand.PrefillerAddress> prefillers) {
        return prefillers.stream().map(EngineCommand.PrefillerAddress::host).toList();
    }

    /** What the command says. */
    public static FetchFacts of(String process, EngineCommand.Fetch fetch) {
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
                fetch.limitNs());
    }
}
