package io.kvmessenger.transfer.verbs;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.LibVerbs;
import java.util.concurrent.Executor;

/**
 * An opened port with its protection domain, which queue pairs and registered memory belong to.
 *
 * <p>Opened before the worker begins; closed by it, after everything that belongs to it.
 */
final class OpenVerbs {
    private final LibVerbs library;
    private final VerbsPort port;
    private final VerbsService service;
    private final Executor connecting;
    private final long domain;

    /**
     * Takes over the port.
     *
     * @param connecting runs calls that may wait for an answer from the network
     * @throws IllegalStateException naming what failed
     */
    OpenVerbs(LibVerbs library, VerbsPort port, VerbsService service, Executor connecting) {
        this.library = library;
        this.port = port;
        this.service = service;
        this.connecting = connecting;
        domain = library.ibv_alloc_pd(port.context());
        if (domain <= 0) {
            library.ibv_close_device(port.context());
        }
        require("ibv_alloc_pd", domain);
    }

    LibVerbs library() {
        return library;
    }

    VerbsPort port() {
        return port;
    }

    VerbsService service() {
        return service;
    }

    Executor connecting() {
        return connecting;
    }

    long domain() {
        return domain;
    }

    /**
     * Returns the result.
     *
     * @throws IllegalStateException when it is an error
     */
    long require(String call, long result) {
        if (result < 0) {
            throw new IllegalStateException(call + " on " + port.device() + ": " + Errno.name((int) -result));
        }
        return result;
    }

    void close() {
        library.ibv_dealloc_pd(domain);
        library.ibv_close_device(port.context());
    }
}
