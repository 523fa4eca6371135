package io.kvmessenger.transfer.spi;

/** A kind of {@link Domain}: opens what the machine has of it. */
public interface Transport {
    /** Its name in addresses and options. */
    String name();

    /**
     * Opens what the machine has. Called before the worker begins.
     *
     * @param port receives what arrives
     * @param figures counters to use
     * @throws TransportUnavailableException when the machine has none, or the operating system refuses it
     * @throws IllegalArgumentException naming the option that is wrong
     */
    Domain open(InboundPort port, Figures figures) throws TransportUnavailableException;
}
