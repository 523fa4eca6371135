package io.kvmessenger.transfer.engine;

import io.kvmessenger.transfer.NoTransportException;
import io.kvmessenger.transfer.spi.Domain;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.Transport;
import io.kvmessenger.transfer.spi.TransportUnavailableException;
import java.util.ArrayList;
import java.util.List;

/**
 * The open domains of an engine, in the order of its transports. A value.
 *
 * @param open at least one
 * @param unavailable reasons why other transports, or devices of an open one, could not be opened
 */
record Domains(List<Domain> open, List<String> unavailable) {
    Domains {
        open = List.copyOf(open);
        unavailable = List.copyOf(unavailable);
    }

    /**
     * Opens every transport that the machine has; on failure none stays open.
     *
     * @throws IllegalArgumentException naming the option that is wrong
     * @throws NoTransportException when no transport could be opened
     */
    static Domains open(List<Transport> transports, InboundPort port, Figures figures) {
        List<Domain> open = new ArrayList<>();
        List<String> unavailable = new ArrayList<>();
        try {
            for (Transport transport : transports) {
                try {
                    Domain domain = transport.open(port, figures.ofTransport(transport.name()));
                    open.add(domain);
                    unavailable.addAll(domain.leftOut());
                } catch (TransportUnavailableException e) {
                    unavailable.add(e.getMessage());
                }
            }
        } catch (RuntimeException | Error e) {
            open.forEach(Domain::close);
            throw e;
        }
        if (open.isEmpty()) {
            throw new NoTransportException("no transport can be opened: " + String.join("; ", unavailable));
        }
        return new Domains(open, unavailable);
    }
}
