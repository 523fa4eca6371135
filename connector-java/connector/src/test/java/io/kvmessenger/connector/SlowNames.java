package io.kvmessenger.connector;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.net.spi.InetAddressResolver;
import java.net.spi.InetAddressResolverProvider;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Stream;

/** The name service of this module's tests: a name server that is silent, for one name, until a test lets it answer. */
public final class SlowNames extends InetAddressResolverProvider {
    static final String SLOW_HOST = "slow.invalid";

    /** Names with several addresses, of which a messenger or an engine listens on one. */
    static final Map<String, List<String>> MANY = Map.of(
            "wrong-first.invalid", List.of("127.0.0.9", "127.0.0.1"),
            "right-first.invalid", List.of("127.0.0.1", "127.0.0.9"),
            "six-first.invalid", List.of("::1", "127.0.0.1"),
            "four-first.invalid", List.of("127.0.0.1", "::1"),
            "last-of-three.invalid", List.of("127.0.0.9", "::1", "127.0.0.1"),
            "none.invalid", List.of("127.0.0.9", "127.0.0.8"));

    /** A name that this host does not know at first, like that of a pod which is not ready yet. */
    static final String LATE_HOST = "late.invalid";

    private static volatile List<String> late = List.of();

    /** From here on the late name has these addresses. */
    static void know(String... addresses) {
        late = List.of(addresses);
    }

    private static volatile CountDownLatch answer = new CountDownLatch(0);

    /** From here on the slow name is not answered; count down to answer that there is no such host. */
    static CountDownLatch fallSilent() {
        answer = new CountDownLatch(1);
        return answer;
    }

    @Override
    public InetAddressResolver get(Configuration configuration) {
        InetAddressResolver builtin = configuration.builtinResolver();
        return new InetAddressResolver() {
            @Override
            public Stream<InetAddress> lookupByName(String host, LookupPolicy policy) throws UnknownHostException {
                if (host.equals(SLOW_HOST)) {
                    try {
                        answer.await();
                    } catch (InterruptedException e) {
                        Thread.currentThread().interrupt();
                    }
                    throw new UnknownHostException(host);
                }
                if (host.equals(LATE_HOST) && !late.isEmpty()) {
                    return late.stream().map(InetAddress::ofLiteral);
                }
                if (MANY.containsKey(host)) {
                    return MANY.get(host).stream().map(InetAddress::ofLiteral);
                }
                return builtin.lookupByName(host, policy);
            }

            @Override
            public String lookupByAddress(byte[] address) throws UnknownHostException {
                return builtin.lookupByAddress(address);
            }
        };
    }

    @Override
    public String name() {
        return "slow names";
    }
}
