package io.kvmessenger.transfer.spi;

/** Words for an exception that ended one link of this engine and nothing else. Pure functions. */
public final class LinkError {
    private LinkError() {}

    /** One sentence with what was thrown and where. */
    public static String describe(Throwable error) {
        StackTraceElement[] stack = error.getStackTrace();
        String where = stack.length == 0 ? "" : " at " + stack[0];
        return "an error of this engine ended the link: " + error + where;
    }
}
