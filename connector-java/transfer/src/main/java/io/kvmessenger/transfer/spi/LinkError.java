package io.kvmessenger.transfer.spi;

/** Describes an exception that ended one link of this engine and nothing else. Pure functions. */
public final class LinkError {
    private LinkError() {}

    /** One sentence with the exception and its location. */
    public static String describe(Throwable error) {
        StackTraceElement[] stack = error.getStackTrace();
        String where = stack.length == 0 ? "" : " at " + stack[0];
        return "an error of this engine ended the link: " + error + where;
    }
}
