package io.kvmessenger.transfer.socket;

/**
 * Types of records on a control stream: a kind, the number of the attachment that it is about, and how many descriptors travel
 * with it. Kinds that are not here belong to the domain of the attachment. Pure functions.
 */
public final class ControlRecord {
    /** Target: the writer has shown who it is. */
    public static final int ACCEPTED = 1;

    /** Either way, without an attachment: a small message. */
    public static final int MESSAGE = 2;

    /** Target: the last one, a {@link Notice}. */
    public static final int NOTICE = 3;

    /** Writer: wants paths of a domain; what follows is the length of its name, the name, and the domain's wish. */
    public static final int ATTACH = 4;

    /** Target: there will be no such paths, for the reason in the {@link Notice}. */
    public static final int REFUSED = 5;

    /** Writer: uses the paths no more. */
    public static final int DETACH = 6;

    /** Target, without an attachment: wants pages of the writer's to be written into its window. */
    public static final int READ = 7;

    /** Writer, without an attachment: what became of a {@link #READ}. */
    public static final int READ_ENDED = 8;

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
