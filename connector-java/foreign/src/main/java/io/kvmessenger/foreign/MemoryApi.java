package io.kvmessenger.foreign;

/** Constants of the memory and file calls; <a href="https://man7.org/linux/man-pages/man2/mmap.2.html">mmap(2)</a>. */
public final class MemoryApi {
    public static final int PROT_READ = 1;
    public static final int PROT_WRITE = 2;
    public static final int PROT_EXEC = 4;
    public static final int MAP_SHARED = 1;
    public static final int MAP_PRIVATE = 2;
    public static final int MAP_ANONYMOUS = 0x20;
    public static final int MADV_DONTFORK = 10;
    /** Since Linux 5.14. */
    public static final int MADV_POPULATE_READ = 22;

    public static final int MFD_CLOEXEC = 1;
    public static final int MFD_ALLOW_SEALING = 2;
    public static final int F_ADD_SEALS = 1033;
    public static final int F_GET_SEALS = 1034;
    public static final int F_SEAL_SEAL = 1;
    public static final int F_SEAL_SHRINK = 2;
    public static final int F_SETFD = 2;
    public static final int FD_CLOEXEC = 1;
    public static final int F_SEAL_GROW = 4;
    public static final int SEEK_END = 2;
    public static final int EFD_CLOEXEC = 0x80000;
    public static final int EFD_NONBLOCK = 0x800;

    private MemoryApi() {}
}
