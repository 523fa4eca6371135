package io.kvmessenger.transfer;

/**
 * A snapshot of one engine's figures since it was opened.
 *
 * @param pagesSent pages of requests, one by one
 * @param writesSent what they were sent as: pages that follow each other on both sides are one write
 * @param writesSaved what the weights of these writes say beyond one each
 * @param straysCounted immediates that named no open window
 * @param pathsRejected sockets closed before they became a path: garbage, another version, a wrong key, too slow
 */
public record TransferCounters(
        long bytesSent,
        long bytesReceived,
        long pagesSent,
        long pagesReceived,
        long writesSent,
        long writesSaved,
        long writesRefused,
        long straysCounted,
        long backPressured,
        long pathsOpened,
        long pathsLost,
        int windowsOpen,
        int regionsOpen,
        int requestsInFlight,
        long pathsRejected) {}
