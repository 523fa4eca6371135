package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.transfer.TransferOptions;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.SplittableRandom;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Requirements on every transport that carries a messenger, whatever it moves: this one has no KV. */
@Timeout(900)
public abstract class EchoContractTest {
    private static final long MEMORY_BYTES = 1 << 20;
    private static final long SMALL_MEMORY_BYTES = 700_000;
    private static final int LENGTH_BYTES = 300_000;
    private static final long AWAIT_LIMIT_NS = 600_000_000_000L;
    private static final long IDLE_NS = 100_000;

    /** What the target knows alone of an ask for more than its half. */
    private static final String TOO_MUCH = "expected at most the " + SMALL_MEMORY_BYTES / 2;

    private EchoNode one;
    private EchoNode target;

    /** The transport's name. */
    protected abstract String transport();

    protected TransferOptions options() {
        return TransferOptions.defaults().withTransports(transport());
    }

    /** An engine with a region. */
    protected abstract DrivenEngine open(String name, long memoryBytes);

    @BeforeEach
    void join() {
        one = new EchoNode("one", open("writer", MEMORY_BYTES));
        target = new EchoNode("target", open("target", SMALL_MEMORY_BYTES));
        EchoNode.join(one, target);
    }

    @AfterEach
    void close() {
        one.close();
        if (target != null) {
            target.close();
        }
    }

    @Test
    void shouldMoveBytesBothWays() {
        for (long id = 1; id <= 3; id++) {
            move(id, one, target);
            move(id, target, one);
        }
        await(() -> one.isClean() && target.isClean());
    }

    @Test
    void shouldEndAnAskForMoreThanThereIs() {
        one.ask(1, (int) SMALL_MEMORY_BYTES / 2 + 1);
        await(() -> !one.ends.isEmpty());
        assertThat(one.ends).singleElement().asString().startsWith("failed 1: ").contains(TOO_MUCH);
        one.ends.clear();
        move(2, target, one);
        await(() -> one.isClean() && target.isClean());
    }

    /** The reason is on its way by the control network when the data path ends, or has come before. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void shouldEndAnAskForThePeersReasonWhicheverChannelEndsFirst(boolean dataPathFirst) {
        move(1, target, one);
        one.holdsInputs = dataPathFirst;
        one.ask(2, (int) SMALL_MEMORY_BYTES / 2 + 1);
        await(() -> dataPathFirst ? one.pathEndCount > 0 : !one.ends.isEmpty());
        if (dataPathFirst) {
            assertThat(one.ends).isEmpty();
            one.holdsInputs = false;
            await(() -> !one.ends.isEmpty());
        }
        assertThat(one.ends).singleElement().asString().startsWith("failed 2: ").contains(TOO_MUCH);
        one.ends.clear();
        move(3, target, one);
        await(() -> one.isClean() && target.isClean());
    }

    @Test
    void shouldEndAnAskOfAPeerThatHasEnded() {
        move(1, target, one);
        target.close();
        target = null;
        one.ask(2, LENGTH_BYTES);
        await(() -> !one.ends.isEmpty());
        assertThat(one.ends).hasSize(1);
        assertThat(one.ends.getFirst()).startsWith("failed 2: ");
        await(one::isClean);
    }

    private void move(long id, EchoNode from, EchoNode to) {
        byte[] random = new byte[LENGTH_BYTES];
        new SplittableRandom(id).nextBytes(random);
        MemorySegment sent = from.driven().memory().asSlice(0, LENGTH_BYTES);
        MemorySegment.copy(random, 0, sent, ValueLayout.JAVA_BYTE, 0, LENGTH_BYTES);
        to.ask(id, LENGTH_BYTES);
        await(() -> !to.ends.isEmpty());
        assertThat(to.ends).containsExactly("arrived " + id);
        to.ends.clear();
        MemorySegment memory = to.driven().memory();
        assertThat(memory.asSlice(memory.byteSize() / 2, LENGTH_BYTES).mismatch(sent))
                .isEqualTo(-1);
    }

    private void await(BooleanSupplier condition) {
        long limitNs = System.nanoTime() + AWAIT_LIMIT_NS;
        while (!condition.getAsBoolean()) {
            int work = one.doWork() + (target == null ? 0 : target.doWork());
            assertThat(System.nanoTime()).as("in time: %s", one.ends).isLessThan(limitNs);
            if (work == 0) {
                one.driven().engine().await(IDLE_NS);
            }
        }
    }
}
