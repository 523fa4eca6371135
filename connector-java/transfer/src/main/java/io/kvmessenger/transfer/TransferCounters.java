package io.kvmessenger.transfer;

/**
 * A snapshot of one engine's figures since it was opened.
 *
 * @param straysCounted immediates that named no open window
 * @param pathsRejected sockets closed before they became a path: garbage, another version, a wrong key, too slow
 * @param writesSent writes that left: pages that follow each other on both sides are one write
 * @param writesSaved what the weights of these writes say beyond one each
 */
public record TransferCounters(
        long bytesSent,
        long bytesReceived,
        long pagesSent,
        long pagesReceived,
        long writesRefused,
        long straysCounted,
        long backPressured,
        long pathsOpened,
        long pathsLost,
        int windowsOpen,
        int regionsOpen,
        int requestsInFlight,
        long pathsRejected,
        long writesSent,
        long writesSaved) {}
