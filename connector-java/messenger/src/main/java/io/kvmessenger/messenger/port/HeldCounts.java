package io.kvmessenger.messenger.port;

/** What a messenger holds for unfinished work. At rest every count is zero. */
public record HeldCounts(
        int fetches, int prefills, int grantsWaiting, int writesInFlight, int windowsOpen, int quarantinedPages) {
    public boolean clean() {
        return fetches + prefills + grantsWaiting + writesInFlight + windowsOpen + quarantinedPages == 0;
    }
}
