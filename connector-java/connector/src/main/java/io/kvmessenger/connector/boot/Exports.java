package io.kvmessenger.connector.boot;

import io.kvmessenger.foreign.ForeignMemory;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;

/**
 * The functions of docs/boundary.md, one method each, as C calls them.
 *
 * <p>Any thread may call, including threads unknown to the JVM. Never throws: a failure becomes a negative result and a
 * sentence. It keeps no state and does not interpret requests; {@link Messengers} does.
 */
final class Exports {
    private static final byte[] NOTHING = new byte[0];
    private static final long OUT_LENGTH_MAX_BYTES = Integer.MAX_VALUE - 8;

    private final Messengers messengers;
    private final Duration closeLimit;

    /** Computed eagerly, so that every class cache contains the build id of its code. */
    private final byte[] description = describeBuild();

    Exports(Messengers messengers, Duration closeLimit) {
        this.messengers = messengers;
        this.closeLimit = closeLimit;
    }

    long describe(long handle, long in, long inLengthBytes, long out, long outCapacityBytes) {
        return guarded(in, inLengthBytes, out, outCapacityBytes, (request, capacityBytes) -> description);
    }

    long open(long handle, long in, long inLengthBytes, long out, long outCapacityBytes) {
        return guarded(
                in,
                inLengthBytes,
                out,
                outCapacityBytes,
                (request, capacityBytes) -> Json.bytes(messengers.open(request)));
    }

    long submit(long handle, long in, long inLengthBytes, long out, long outCapacityBytes) {
        return guarded(in, inLengthBytes, out, outCapacityBytes, (request, capacityBytes) -> {
            messengers.submit(handle, request);
            return NOTHING;
        });
    }

    long poll(long handle, long in, long inLengthBytes, long out, long outCapacityBytes) {
        return guarded(
                in,
                inLengthBytes,
                out,
                outCapacityBytes,
                (request, capacityBytes) -> messengers.poll(handle, capacityBytes));
    }

    long stats(long handle, long in, long inLengthBytes, long out, long outCapacityBytes) {
        return guarded(in, inLengthBytes, out, outCapacityBytes, (request, capacityBytes) -> messengers.stats(handle));
    }

    long fence(long handle, long in, long inLengthBytes, long out, long outCapacityBytes) {
        return guarded(
                in,
                inLengthBytes,
                out,
                outCapacityBytes,
                (request, capacityBytes) -> messengers.fence(handle, request));
    }

    long leakCheck(long handle, long in, long inLengthBytes, long out, long outCapacityBytes) {
        return guarded(
                in, inLengthBytes, out, outCapacityBytes, (request, capacityBytes) -> messengers.leakCheck(handle));
    }

    long close(long handle, long in, long inLengthBytes, long out, long outCapacityBytes) {
        return guarded(
                in,
                inLengthBytes,
                out,
                outCapacityBytes,
                (request, capacityBytes) -> closeWithinLimit(handle, request));
    }

    long await(long handle, long in, long inLengthBytes, long out, long outCapacityBytes) {
        return guarded(in, inLengthBytes, out, outCapacityBytes, (request, capacityBytes) -> {
            messengers.await(handle, request);
            return NOTHING;
        });
    }

    /** Closes on a separate thread: the end of a process must not hang on a messenger that hangs. */
    private byte[] closeWithinLimit(long handle, byte[] request) throws InterruptedException {
        Throwable[] failure = new Throwable[1];
        Thread closing = Thread.ofPlatform()
                .daemon()
                .name("kv-messenger-close-" + handle)
                .uncaughtExceptionHandler((thread, thrown) -> failure[0] = thrown)
                .start(() -> messengers.close(handle, request));
        if (!closing.join(closeLimit)) {
            throw new RefusedException("the messenger did not close within " + closeLimit.toSeconds()
                    + " s: it is left as it is, its memory must stay mapped until the process ends");
        }
        if (failure[0] instanceof RefusedException refused) {
            throw refused;
        }
        if (failure[0] != null) {
            throw new IllegalStateException("close failed", failure[0]);
        }
        return NOTHING;
    }

    private static byte[] describeBuild() {
        Map<String, Object> given = new LinkedHashMap<>();
        given.put("buildId", BuildId.value());
        given.put("version", BuildId.version());
        given.put("java", Runtime.version().toString());
        return Json.bytes(given);
    }

    private static long guarded(long in, long inLengthBytes, long out, long outCapacityBytes, Call call) {
        MemorySegment answerSpace = MemorySegment.NULL;
        try {
            answerSpace = ForeignMemory.at(out, Math.min(outCapacityBytes, OUT_LENGTH_MAX_BYTES));
            byte[] request = inLengthBytes == 0
                    ? NOTHING
                    : ForeignMemory.at(in, inLengthBytes).toArray(ValueLayout.JAVA_BYTE);
            byte[] answer = Objects.requireNonNull(call.answer(request, (int) answerSpace.byteSize()));
            if (answer.length > answerSpace.byteSize()) {
                throw new RefusedException("the answer has " + answer.length + " bytes and there is room for "
                        + answerSpace.byteSize() + ": call with a larger out");
            }
            MemorySegment.copy(answer, 0, answerSpace, ValueLayout.JAVA_BYTE, 0, answer.length);
            return answer.length;
        } catch (Throwable failure) {
            return ErrorSentence.write(failure, answerSpace);
        }
    }

    /** The body of an export, between reading its request and writing its answer. */
    @FunctionalInterface
    private interface Call {
        byte[] answer(byte[] request, int capacityBytes) throws Exception;
    }
}
