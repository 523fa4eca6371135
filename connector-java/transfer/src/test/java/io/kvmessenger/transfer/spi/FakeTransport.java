package io.kvmessenger.transfer.spi;

/** Opens one domain of the test's, or says why not. */
public final class FakeTransport implements Transport {
    private final Domain domain;
    private final String unavailable;

    private FakeTransport(Domain domain, String unavailable) {
        this.domain = domain;
        this.unavailable = unavailable;
    }

    public static FakeTransport of(Domain domain) {
        return new FakeTransport(domain, null);
    }

    public static FakeTransport unavailable(String detail) {
        return new FakeTransport(null, detail);
    }

    @Override
    public String name() {
        return "fake";
    }

    @Override
    public Domain open(InboundPort port, Figures figures) throws TransportUnavailableException {
        if (unavailable != null) {
            throw new TransportUnavailableException(unavailable, null);
        }
        return domain;
    }
}
