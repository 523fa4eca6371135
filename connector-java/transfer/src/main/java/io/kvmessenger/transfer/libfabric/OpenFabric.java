package io.kvmessenger.transfer.libfabric;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.kvmessenger.foreign.LibFabric;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * One opened NIC, which endpoints and registered memory belong to.
 *
 * <p>Opened before the worker begins; closed by it, after everything that belongs to it.
 */
final class OpenFabric {
    private static final long NONE = 0;

    private final LibFabric library;
    private final FabricInfo info;
    private long fabric;
    private long domain;

    /**
     * Takes over the info.
     *
     * @throws IllegalStateException naming what failed
     */
    OpenFabric(LibFabric library, FabricInfo info) {
        this.library = library;
        this.info = info;
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment opened = arena.allocate(JAVA_LONG);
            require("fi_fabric", library.fi_fabric(info.fabricAttributes(), opened));
            fabric = opened.get(JAVA_LONG, 0);
            require("fi_domain", library.fi_domain(fabric, info.segment(), opened));
            domain = opened.get(JAVA_LONG, 0);
        } catch (IllegalStateException e) {
            close();
            throw e;
        }
    }

    LibFabric library() {
        return library;
    }

    FabricInfo info() {
        return info;
    }

    long fabric() {
        return fabric;
    }

    long domain() {
        return domain;
    }

    /** Describes a result below zero. */
    String describe(long result) {
        return library.fi_strerror((int) -result);
    }

    /** @throws IllegalStateException when the result is an error */
    void require(String call, long result) {
        if (result < 0) {
            throw new IllegalStateException(call + " of libfabric's " + info.provider() + ": " + describe(result));
        }
    }

    void close() {
        if (domain != NONE) {
            library.fi_close(domain);
        }
        if (fabric != NONE) {
            library.fi_close(fabric);
        }
        library.fi_freeinfo(info.segment());
    }
}
