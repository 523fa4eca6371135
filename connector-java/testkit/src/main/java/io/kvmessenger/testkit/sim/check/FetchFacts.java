package io.kvmessenger.testkit.sim.check;

import io.kvmessenger.messenger.port.EngineCommand;
import java.util.List;
import java.util.stream.IntStream;

/**
 * What a decoder's engine asked for. A value.
 *
 * @param prefillers names of the nodes that are asked
 * @param limitNs its own limit, 0 for the messenger's
 */
public record FetchFacts(
        String process,
        String request,
        String transferId,
        List<String> prefillers,
        int promptTokens,
        int firstToken,
        List<Integer> pages,
        long limitNs) {
    public FetchFacts {
        prefillers = List.copyOf(prefillers);
        pages = List.copyOf(pages);
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
                fetch.transferId(),
                hostsOf(fetch.prefillers()),
                fetch.promptTokens(),
                fetch.firstToken(),
                IntStream.of(fetch.pages()).boxed().toList(),
                fetch.limitNs());
    }
}
