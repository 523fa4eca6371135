package io.kvmessenger.messenger.port;

/** When things happened to a fetch, on the machine's monotonic clock; 0 = not reached. */
public record FetchTimeline(
        String request,
        String transferId,
        int pageCount,
        long bytes,
        long askedNs,
        long grantedNs,
        long readyNs,
        String prefiller,
        EngineCommand.PullWaits waits) {}
