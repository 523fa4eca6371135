package io.kvmessenger.transfer.engine;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Set;

/**
 * The file by which all processes of one user on a machine see what each has for its links. Any thread.
 *
 * <p>It is made by the first process, is 32 KiB long, and stays. A row's owner is a process by its number and the time of
 * its start, so that a row of a process that has ended is taken by another one. It holds no names and no contents.
 */
final class LinkFile implements LinkBoard.Backing {
    private static final Set<PosixFilePermission> OWN = PosixFilePermissions.fromString("rw-------");
    private static final Set<OpenOption> HOW = Set.of(
            StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE, LinkOption.NOFOLLOW_LINKS);
    private static final Path PROC = Path.of("/proc");
    /** Of /proc/PID/stat, behind the command's name. */
    private static final int START_FIELD = 19;

    private static final int PID_BITS = 32;
    private static final long START_MASK = (1L << PID_BITS) - 1;

    private final FileChannel channel;
    private final long own;

    private LinkFile(FileChannel channel) throws IOException {
        this.channel = channel;
        own = owner(ProcessHandle.current().pid());
    }

    /** This user's file in a folder of memory, such as /dev/shm. */
    static Path in(Path folder) throws IOException {
        return folder.resolve("kv-messenger-links-" + Files.getAttribute(PROC.resolve("self"), "unix:uid"));
    }

    /**
     * Opens the file, or makes it.
     *
     * @throws IOException with the reason why it cannot be used
     */
    static LinkBoard open(Path file) throws IOException {
        FileChannel channel = FileChannel.open(file, HOW, PosixFilePermissions.asFileAttribute(OWN));
        try {
            requireOwn(file);
            // Written, so that the memory is there: a page that cannot be had later would end the process.
            long sizeBytes = channel.size();
            if (sizeBytes < LinkBoard.LENGTH_BYTES) {
                ByteBuffer zeros = ByteBuffer.allocate((int) (LinkBoard.LENGTH_BYTES - sizeBytes));
                while (zeros.hasRemaining()) {
                    channel.write(zeros, sizeBytes + zeros.position());
                }
            }
            MemorySegment rows = channel.map(FileChannel.MapMode.READ_WRITE, 0, LinkBoard.LENGTH_BYTES, Arena.ofAuto());
            return new LinkBoard(rows, new LinkFile(channel), network());
        } catch (IOException | RuntimeException e) {
            channel.close();
            throw e;
        }
    }

    private static void requireOwn(Path file) throws IOException {
        Object user = Files.getAttribute(PROC.resolve("self"), "unix:uid");
        Object owner = Files.getAttribute(file, "unix:uid", LinkOption.NOFOLLOW_LINKS);
        Set<PosixFilePermission> permissions = Files.getPosixFilePermissions(file, LinkOption.NOFOLLOW_LINKS);
        if (!user.equals(owner) || !permissions.equals(OWN)) {
            throw new IOException(file + " is of user " + owner + " with permissions "
                    + PosixFilePermissions.toString(permissions) + ", expected user " + user + " and "
                    + PosixFilePermissions.toString(OWN) + ": delete it");
        }
    }

    /** Tells the interfaces of one network namespace from those of another, which may have the same addresses. */
    private static String network() throws IOException {
        return Files.readSymbolicLink(PROC.resolve("self/ns/net")).toString();
    }

    @Override
    public long own() {
        return own;
    }

    @Override
    public boolean isAlive(long owner) {
        try {
            return owner(owner >>> PID_BITS) == owner;
        } catch (IOException e) {
            return false;
        }
    }

    /** A row that is behind the file's end cannot be touched. */
    @Override
    public boolean isWhole() {
        try {
            return channel.isOpen() && channel.size() >= LinkBoard.LENGTH_BYTES;
        } catch (IOException e) {
            return false;
        }
    }

    @Override
    public void close() {
        try {
            channel.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static long owner(long pid) throws IOException {
        String stat = Files.readString(PROC.resolve(pid + "/stat"));
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ", -1);
        return pid << PID_BITS | (Long.parseLong(fields[START_FIELD]) & START_MASK);
    }
}
