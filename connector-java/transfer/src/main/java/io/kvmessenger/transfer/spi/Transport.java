package io.kvmessenger.transfer.spi;

/** One kind of {@link Domain}: opens what the machine has of it. */
public interface Transport {
    /** As it stands in addresses and options. */
    String name();

    /**
     * Opens what the machine has. Before the worker begins.
     *
     * @param port what has arrived is told to it
     * @param figures counted on
     * @throws TransportUnavailableException when the machine has none, or the operating system refuses it
     * @throws IllegalArgumentException naming the option that is wrong
     */
    Domain open(InboundPort port, Figures figures) throws TransportUnavailableException;
}
