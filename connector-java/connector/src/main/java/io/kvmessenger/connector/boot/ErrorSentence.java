package io.kvmessenger.connector.boot;

import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;

/** The message of a failed call, as bytes that fit the caller's buffer. Safe from any thread; never throws. */
final class ErrorSentence {
    private static final byte[] LAST_RESORT =
            "the messenger failed and could not say why: the JVM is out of memory, raise -Xmx in jvm_options"
                    .getBytes(StandardCharsets.UTF_8);

    private ErrorSentence() {}

    /** Writes the sentence to {@code out} and returns the call's negative result. */
    static long write(Throwable failure, MemorySegment out) {
        byte[] sentence;
        try {
            sentence = of(failure).getBytes(StandardCharsets.UTF_8);
        } catch (Throwable another) {
            sentence = LAST_RESORT;
        }
        int lengthBytes = wholeCharacters(sentence, out.byteSize());
        for (int i = 0; i < lengthBytes; i++) {
            out.set(ValueLayout.JAVA_BYTE, i, sentence[i]);
        }
        return -1L - lengthBytes;
    }

    private static String of(Throwable failure) {
        if (failure instanceof RefusedException) {
            return failure.getMessage();
        }
        if (failure instanceof OutOfMemoryError) {
            return outOfMemory(String.valueOf(failure.getMessage()));
        }
        if (isLackOfFiles(failure)) {
            return "this process may open no more files (" + failure.getMessage() + "): raise its limit, ulimit -n, to"
                    + " 4096 or more";
        }
        StackTraceElement[] trace = failure.getStackTrace();
        String where = trace.length == 0 ? "" : " at " + trace[0];
        return "a bug in the messenger: " + failure + where + "; please report it with this line";
    }

    /** By the name of the error number, or by what the JDK's exceptions say of it. */
    private static boolean isLackOfFiles(Throwable failure) {
        for (Throwable one = failure; one != null; one = one.getCause()) {
            String reason = String.valueOf(one.getMessage());
            if (reason.contains("EMFILE") || reason.contains("Too many open files")) {
                return true;
            }
        }
        return false;
    }

    /** The JVM's messages for exhausted heap, and for threads and memory that the system does not provide. */
    private static String outOfMemory(String reason) {
        return reason.startsWith("Java heap space") || reason.startsWith("GC overhead")
                ? "the JVM's heap of " + (Runtime.getRuntime().maxMemory() >> 20) + " MiB is too small (" + reason
                        + "): raise -Xmx in jvm_options, or take it out for the default"
                : "the JVM was refused memory or a thread (" + reason
                        + "): raise what the system limits this process to, or the option of the JVM that the reason names";
    }

    /** The longest prefix of at most {@code capacityBytes} that does not cut a character in two. */
    private static int wholeCharacters(byte[] utf8, long capacityBytes) {
        if (utf8.length <= capacityBytes) {
            return utf8.length;
        }
        int lengthBytes = (int) capacityBytes;
        while (lengthBytes > 0 && (utf8[lengthBytes] & 0xC0) == 0x80) {
            lengthBytes--;
        }
        return lengthBytes;
    }
}
