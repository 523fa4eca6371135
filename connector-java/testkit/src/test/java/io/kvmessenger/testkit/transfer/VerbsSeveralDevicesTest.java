package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferRequest.ImmOnly;
import io.kvmessenger.transfer.WindowArea;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Writes by several devices at once, each at a wire of its own: what goes where, and what a wire or a peer that is lost may cost. */
@Timeout(900)
final class VerbsSeveralDevicesTest extends VerbsRounds {
    private static final int ROUNDS = 5;
    private static final int LOST = 1;
    private static final int UNPLUGGED = 2;
    private static final long[] ODD_LENGTHS = {1, 4095, 65_537, (1 << 20) + 1, MEMORY_BYTES - 7};

    private boolean unplugged;

    @AfterEach
    void plug() {
        if (unplugged) {
            VerbsWire.plug(UNPLUGGED);
        }
    }

    private DrivenEngine open(String name, int count) {
        return new DrivenEngine(RdmaDevices.byPairs(options(), name, count), name, MEMORY_BYTES);
    }

    private DrivenEngine atSwitch(String name, int firstDevice, int count) {
        return new DrivenEngine(RdmaDevices.bySwitched(options(), firstDevice, count), name, MEMORY_BYTES);
    }

    private void connect(int count) {
        connect(open("writer", count), open("target", count));
        awaitPaths(count);
    }

    private void awaitPaths(long opened) {
        writer.await(opened + " paths", () -> counted(TransferCounter.PATHS_OPENED) == opened);
    }

    private long counted(TransferCounter what) {
        return writer.engine().counters().of(what);
    }

    private void rounds() {
        for (int i = 0; i < ROUNDS; i++) {
            round(() -> {});
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {2, 4})
    void shouldSendByEachWire(int count) {
        connect(count);
        List<VerbsWire> wires =
                IntStream.range(0, count).mapToObj(VerbsWire::ofPair).toList();
        long[] before = wires.stream().mapToLong(VerbsWire::sentBytes).toArray();
        rounds();
        long[] sent = IntStream.range(0, count)
                .mapToLong(i -> wires.get(i).sentBytes() - before[i])
                .toArray();
        assertThat(LongStream.of(sent).min().getAsLong()).isGreaterThan(PAGE_BYTES);
        assertThat(LongStream.of(sent).sum()).isGreaterThan(ROUNDS * MEMORY_BYTES);
        assertNothingLost();
    }

    /** What is in front of the write and behind it stays as it is. */
    @ParameterizedTest
    @ValueSource(ints = {2, 4})
    void shouldSplitLargeWritesAtOddLengths(int count) {
        connect(count);
        fillSource(random);
        for (long lengthBytes : ODD_LENGTHS) {
            target.memory().fill(GUARD);
            long filled = ++lastCookie;
            ImmWindow window = grant(everything(), 1, filled);
            writer.submit(peer, single(remote(window), 5, 3, lengthBytes), ++lastCookie);
            DrivenEngine.awaitBoth(
                    lengthBytes + " bytes",
                    writer,
                    target,
                    () -> target.filled.contains(filled) && haveEnded(filled + 1));
            assertThat(target.memory()
                            .asSlice(3, lengthBytes)
                            .mismatch(writer.memory().asSlice(5, lengthBytes)))
                    .isEqualTo(-1);
            assertThat(isGuard(target.memory().asSlice(0, 3))).isTrue();
            assertThat(isGuard(target.memory().asSlice(3 + lengthBytes))).isTrue();
            window.close(true);
        }
        assertNothingLost();
    }

    /** At the switch, where each device reaches each. */
    @ParameterizedTest
    @CsvSource({"2, 1", "1, 2"})
    void shouldUseAllOfUnlikeNumbersOfDevices(int writers, int targets) {
        connect(atSwitch("writer", 0, writers), atSwitch("target", writers, targets));
        awaitPaths(2);
        rounds();
        assertNothingLost();
    }

    /** Its packets stop; what was under way on it goes by the others, and when it is back it is used again. */
    @Test
    void shouldLoseOneOfFourInMidTransferAndTakeItBack() {
        connect(4);
        VerbsWire lost = VerbsWire.ofPair(LOST);
        try {
            rounds();
            round(lost::cut);
            round(() -> {});
            writer.await("the loss", () -> counted(TransferCounter.PATHS_LOST) == 1);
            rounds();
        } finally {
            lost.restore();
        }
        awaitPaths(4 + 1);
        long before = lost.sentBytes();
        while (lost.sentBytes() - before < PAGE_BYTES) {
            round(() -> {});
        }
        assertNothingLost();
        assertThat(counted(TransferCounter.PATHS_LOST)).isEqualTo(1);
    }

    @Test
    void shouldGoOnWithAPeerWhileAnotherIsLost() {
        connect(atSwitch("writer", 0, 1), atSwitch("target", 1, 1));
        try (DrivenEngine other = atSwitch("target that is lost", UNPLUGGED, 1)) {
            Admission own = other.engine().admit("writer");
            Peer second = writer.engine().connect(other.engine().address(), own.key(), "the other");
            writer.await("the other peer", () -> writer.ready.contains(second));
            unplugged = true;
            VerbsWire.unplug(UNPLUGGED);
            ImmWindow window = other.openWindow(own, everything(), 1, 1);
            RemoteWindow allowed = writer.engine()
                    .allow(second, window.imm(), WindowArea.of(other.region().descriptor(), everything()));
            long cookie = ++lastCookie;
            writer.submit(second, new ImmOnly(allowed, 1), cookie);
            while (!writer.lost.containsKey(second.id())) {
                round(() -> {});
            }
            rounds();
            assertThat(writer.lost.get(second.id()).fault()).isEqualTo(TransferFault.DISCONNECTED);
            assertThat(writer.lost).containsOnlyKeys(second.id());
            assertThat(writer.failed).containsOnlyKeys(cookie);
            assertThat(writer.endings.values()).containsOnly(1);
            assertThat(target.closedAdmissions).isEmpty();
        }
    }
}
