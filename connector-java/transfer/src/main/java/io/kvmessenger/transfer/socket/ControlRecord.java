package io.kvmessenger.transfer.socket;

/**
 * Types of records on a control stream: a kind, the number of the attachment concerned, and how many descriptors travel
 * with it. Further kinds are defined by the attachment's domain. Pure functions.
 */
public final class ControlRecord {
    /** Target: the writer has proven its identity. */
    public static final int ACCEPTED = 1;

    /** From either side, without an attachment: a small message. */
    public static final int MESSAGE = 2;

    /** Target: its last record, a {@link Notice}. */
    public static final int NOTICE = 3;

    /** Writer: requests paths of a domain; followed by the length of its name, the name, and the domain's wish. */
    public static final int ATTACH = 4;

    /** Target: the paths are refused, for the reason in the {@link Notice}. */
    public static final int REFUSED = 5;

    /** Writer: does not use the paths any more. */
    public static final int DETACH = 6;

    /** Target, without an attachment: requests that pages of the writer be written into its window. */
    public static final int READ = 7;

    /** Writer, without an attachment: the result of a {@link #READ}. */
    public static final int READ_ENDED = 8;

    /**
     * From either side, without an attachment and without content: a heartbeat. Only if the {@link Hello} allows it.
     */
    public static final int ALIVE = 9;

    /**
     * Target, after a {@link #DETACH}: nothing follows about that use of the number, which may be used again. Writers of
     * the previous version ignore it, as they ignore all domains' kinds about a number that they have detached.
     */
    public static final int RELEASED = 255;

    private static final int NUMBER_SHIFT = 8;
    private static final int DESCRIPTORS_SHIFT = 16;
    private static final int MASK = 255;

    private ControlRecord() {}

    public static int type(int kind, int number) {
        return number << NUMBER_SHIFT | kind;
    }

    static int withDescriptors(int type, int count) {
        return type | count << DESCRIPTORS_SHIFT;
    }

    static int descriptorCount(int type) {
        return type >>> DESCRIPTORS_SHIFT & MASK;
    }

    public static int kind(int type) {
        return type & MASK;
    }

    public static int number(int type) {
        return type >>> NUMBER_SHIFT & MASK;
    }
}
