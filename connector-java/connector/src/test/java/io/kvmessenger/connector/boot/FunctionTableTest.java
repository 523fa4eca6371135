package io.kvmessenger.connector.boot;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.Test;

/** Calls the table as a C host would: by address, with raw memory. */
@SuppressWarnings("restricted")
class FunctionTableTest {
    private static final FunctionDescriptor C_TYPE = FunctionDescriptor.of(
            ValueLayout.JAVA_LONG,
            ValueLayout.JAVA_LONG,
            ValueLayout.ADDRESS,
            ValueLayout.JAVA_LONG,
            ValueLayout.ADDRESS,
            ValueLayout.JAVA_LONG);
    private static final String OPTIONS = "{\"options\":{\"engineId\":\"here\",\"listenPort\":5},\"geometry\":{}}";

    private final MemorySegment table = table(new SimulatedMessengers());

    @Test
    void shouldSayItsMagicAndHowManyFunctionsFollow() {
        assertThat(table.getAtIndex(ValueLayout.JAVA_LONG, 0)).isEqualTo(0x4B564D53_00000001L);
        assertThat(table.getAtIndex(ValueLayout.JAVA_LONG, 1)).isEqualTo(9);
    }

    @Test
    void shouldDescribeTheCodeThatRuns() throws Throwable {
        assertThat(call("describe", 0, "", 4096).text())
                .contains("\"buildId\":\"" + BuildId.value() + "\"")
                .contains("\"version\":\"" + BuildId.version() + "\"");
        assertThat(BuildId.value()).matches("[0-9a-f]{24}");
    }

    @Test
    void shouldOpenSubmitPollAndClose() throws Throwable {
        assertThat(call("open", 0, OPTIONS, 4096).text()).startsWith("{\"handle\":1,\"engineId\":\"here\"");
        assertThat(call("poll", 1, "", 4096).result()).isZero();
        assertThat(call("submit", 1, "{\"commands\":[{\"do\":\"echo\",\"event\":{\"event\":\"released\"}}]}", 4096)
                        .result())
                .isZero();
        assertThat(call("poll", 1, "", 4096).text()).isEqualTo("{\"events\":[{\"event\":\"released\"}]}");
        assertThat(call("close", 1, "", 4096).result()).isZero();
        assertThat(call("close", 1, "", 4096).result()).isZero();
    }

    @Test
    void shouldAnswerARefusalWithItsSentenceAlone() throws Throwable {
        Answer answer = call("poll", 99, "", 4096);
        assertThat(answer.result()).isNegative();
        assertThat(answer.text()).isEqualTo("handle is 99, expected one that open gave: open first");
    }

    @Test
    void shouldTurnEveryThrowableIntoASentence() throws Throwable {
        call("open", 0, OPTIONS, 4096);
        for (String how : new String[] {"null", "stack"}) {
            assertThat(misbehave(how)).as(how).startsWith("a bug in the messenger: java.lang.");
        }
        assertThat(misbehave("memory"))
                .startsWith("the JVM's heap of ")
                .endsWith("(Java heap space): raise -Xmx in jvm_options, or take it out for the default");
        assertThat(call("stats", 1, "", 4096).result()).isPositive();
    }

    private String misbehave(String how) throws Throwable {
        Answer answer = call("submit", 1, "{\"commands\":[{\"do\":\"misbehave\",\"how\":\"" + how + "\"}]}", 4096);
        assertThat(answer.result()).as(how).isNegative();
        return answer.text();
    }

    @Test
    void shouldRefuseAnAnswerThatDoesNotFit() throws Throwable {
        Answer answer = call("describe", 0, "", 60);
        assertThat(answer.result()).isBetween(-61L, -2L);
        assertThat(answer.text()).startsWith("the answer has ");
    }

    @Test
    void shouldCutASentenceBetweenCharacters() throws Throwable {
        call("open", 0, OPTIONS, 4096);
        String request = "{\"commands\":[{\"do\":\"misbehave\",\"how\":\"ééééééé\"}]}";
        for (int capacityBytes = 10; capacityBytes < 20; capacityBytes++) {
            assertThat(call("submit", 1, request, capacityBytes).text()).doesNotContain("\uFFFD");
        }
    }

    @Test
    void shouldGiveUpOnAMessengerThatDoesNotClose() {
        CountDownLatch never = new CountDownLatch(1);
        Messengers stuck = new ClosingMessengers(() -> {
            try {
                never.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        });
        Exports exports = new Exports(stuck, java.time.Duration.ofMillis(20));
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(512);
            long result = exports.close(1, 0, 0, out.address(), out.byteSize());
            assertThat(text(out, result)).startsWith("the messenger did not close within 0 s");
        } finally {
            never.countDown();
        }
    }

    @Test
    void shouldSayWhyACloseFailed() {
        Messengers failing = new ClosingMessengers(() -> {
            throw new RefusedException("not now");
        });
        Exports exports = new Exports(failing, java.time.Duration.ofHours(1));
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(512);
            assertThat(text(out, exports.close(1, 0, 0, out.address(), out.byteSize())))
                    .isEqualTo("not now");
        }
    }

    private record Answer(long result, String text) {}

    private Answer call(String function, long handle, String request, int capacityBytes) throws Throwable {
        int index = FunctionTable.FUNCTIONS.indexOf(function);
        MethodHandle handleToC = Linker.nativeLinker()
                .downcallHandle(MemorySegment.ofAddress(table.getAtIndex(ValueLayout.JAVA_LONG, 2 + index)), C_TYPE);
        try (Arena arena = Arena.ofConfined()) {
            byte[] bytes = request.getBytes(StandardCharsets.UTF_8);
            MemorySegment in = arena.allocateFrom(ValueLayout.JAVA_BYTE, bytes);
            MemorySegment out = arena.allocate(capacityBytes);
            long result = (long) handleToC.invokeExact(handle, in, (long) bytes.length, out, (long) capacityBytes);
            return new Answer(result, text(out, result));
        }
    }

    private static String text(MemorySegment out, long result) {
        long lengthBytes = result >= 0 ? result : -1 - result;
        return new String(out.asSlice(0, lengthBytes).toArray(ValueLayout.JAVA_BYTE), StandardCharsets.UTF_8);
    }

    private static MemorySegment table(Messengers messengers) {
        return MemorySegment.ofAddress(FunctionTable.publish(messengers)).reinterpret(88);
    }
}
