package io.kvmessenger.transfer.verbs;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.foreign.Errno;
import io.kvmessenger.foreign.LibVerbs;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.spi.FakePort;
import io.kvmessenger.transfer.spi.InboundAdmission;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.reflect.Proxy;
import java.util.HashSet;
import java.util.Set;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Attempts of a peer that come to nothing, again and again: what each has taken is given back. Memory that is given back
 * is found at the same places by the next attempt; what is kept never is.
 */
final class RefusedPathMemoryTest {
    private static final int ATTEMPTS = 64;
    private static final byte[] GID = new byte[PairName.GID_BYTES];

    private final Set<Long> ofPairs = new HashSet<>();
    private final Set<Long> ofReceives = new HashSet<>();

    /** A device that refuses one function, and remembers where the memory of its callers is. */
    private LibVerbs refusing(String function) {
        return (LibVerbs) Proxy.newProxyInstance(
                LibVerbs.class.getClassLoader(), new Class<?>[] {LibVerbs.class}, (proxy, method, arguments) -> {
                    if (method.getName().equals("ibv_create_qp")) {
                        ofPairs.add(((MemorySegment) arguments[1]).address());
                    } else if (method.getName().equals("ibv_post_recv")) {
                        ofReceives.add((long) arguments[1]);
                    }
                    long result = method.getName().equals(function) ? -Errno.EIO : 1;
                    return method.getReturnType() == long.class ? (Object) result : (Object) (int) Math.min(0, result);
                });
    }

    @ParameterizedTest
    @CsvSource({
        "nothing, another kind of network, 1",
        "ibv_create_cq, this kind of network, 0",
        "ibv_create_qp, this kind of network, 0",
        "ibv_modify_qp, this kind of network, 0",
        "ibv_post_recv, this kind of network, 1"
    })
    void shouldGiveBackWhatItTook(String refused, String network, int receives) {
        boolean ethernet = network.startsWith("this");
        VerbsPort port = new VerbsPort("loop0", 1, 1, true, 0, 0, GID, 5, 1 << 23, 64, 64);
        Nic nic = Nic.of(new OpenVerbs(refusing(refused), port, new VerbsService(0, 0, 0), Runnable::run));
        PairName peer = new PairName(7, 0, 5, 0, ethernet, GID);
        InboundAdmission from = new InboundAdmission(new Admission(1, "writer", new byte[Admission.KEY_LENGTH_BYTES]));
        FakePort inbound = new FakePort(from, Arena.ofAuto().allocate(4096), Imm.of(1, 0), 4096);
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            assertThatThrownBy(() -> new VerbsReceivePath(inbound, from, new PathName(0, 0), null, nic, peer, 0, 1))
                    .isInstanceOfAny(IllegalArgumentException.class, IllegalStateException.class);
        }
        assertThat(ofPairs).hasSizeLessThan(ATTEMPTS / 2);
        assertThat(ofReceives).hasSizeBetween(receives, ATTEMPTS / 2);
    }
}
