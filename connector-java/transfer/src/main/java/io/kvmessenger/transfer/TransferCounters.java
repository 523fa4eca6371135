package io.kvmessenger.transfer;

/** A snapshot of one engine's figures since it was opened. */
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
        int requestsInFlight) {}
