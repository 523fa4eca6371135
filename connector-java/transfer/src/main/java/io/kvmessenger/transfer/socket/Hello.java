package io.kvmessenger.transfer.socket;

import static io.kvmessenger.transfer.spi.LittleEndian.INT;
import static io.kvmessenger.transfer.spi.LittleEndian.LONG;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;

import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.InboundPort;
import io.kvmessenger.transfer.spi.KeyProof;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;

/**
 * The answer to a {@link Challenge}: magic, version, the socket's purpose, the name of an admission key, and the proof
 * that the sender has that key. The proof covers the challenge, the purpose and the dialled address, so that a recorded
 * hello is useless on another socket, for another purpose or at another target. A value.
 *
 * @param version that both sides speak from here on: the newest common one
 * @param role {@link #CONTROL}, or the result of {@link #role} for a data socket
 * @param count of a data socket: how many were dialled for its role before
 * @param nonce the sender's own, for the keys of both directions of a sealed socket; empty before {@link #WITH_NONCE}
 */
public record Hello(int version, int role, int count, byte[] keyName, byte[] proof, byte[] nonce) {
    public static final long MAGIC = 0x3148_5450_534D_564BL; // "KVMSPTH1" in wire order
    /** The newest version that is spoken. */
    public static final int VERSION = 5;

    public static final int OLDEST_VERSION = 4;

    /** The first version whose hello carries a nonce. */
    static final int WITH_NONCE = 5;

    /** The first version in which an idle socket carries heartbeats. */
    private static final int WITH_HEARTBEATS = 5;

    public static final int CONTROL = 0;
    public static final int NONCE_LENGTH_BYTES = 32;
    /** Length before {@link #WITH_NONCE}, and of the part that gives the version. */
    static final int SHORT_LENGTH_BYTES = 72;

    /** Length of the newest version, which is the longest. */
    public static final int LENGTH_BYTES = SHORT_LENGTH_BYTES + NONCE_LENGTH_BYTES;

    private static final int ATTACHMENT_SHIFT = 8;
    private static final int LANE_MASK = (1 << ATTACHMENT_SHIFT) - 1;
    private static final int VERSION_OFFSET = 8;
    private static final int ROLE_OFFSET = 12;
    private static final int KEY_NAME_OFFSET = 16;
    private static final int COUNT_OFFSET = 32;
    private static final int PROOF_OFFSET = 40;

    /**
     * The role of a data socket.
     *
     * @param attachment number of the paths that it belongs to
     * @param lane its place among them, from 1
     */
    public static int role(int attachment, int lane) {
        return attachment << ATTACHMENT_SHIFT | lane;
    }

    public static int attachment(int role) {
        return role >>> ATTACHMENT_SHIFT;
    }

    public static int lane(int role) {
        return role & LANE_MASK;
    }

    /**
     * The answer in the newest version of both sides.
     *
     * @param location the dialled address, as the target's engine address gives it
     * @param nonce not used before on a sealed socket; sent if the version has one
     */
    public static Hello answer(Challenge challenge, String location, int role, int count, byte[] key, byte[] nonce) {
        int version = Math.min(VERSION, challenge.newestVersion());
        byte[] sent = version < WITH_NONCE ? new byte[0] : nonce;
        byte[] proof = proof(challenge, location, version, role, count, sent, key);
        return new Hello(version, role, count, KeyProof.nameOf(key), proof, sent);
    }

    private static byte[] proof(
            Challenge challenge, String location, int version, int role, int count, byte[] nonce, byte[] key) {
        byte[] place = location.getBytes(StandardCharsets.UTF_8);
        ByteBuffer statement =
                ByteBuffer.allocate(Challenge.NONCE_LENGTH_BYTES + 3 * Integer.BYTES + nonce.length + place.length);
        statement
                .put(challenge.nonce())
                .putInt(version)
                .putInt(role)
                .putInt(count)
                .put(nonce);
        return KeyProof.of(key, statement.put(place).array());
    }

    /** Whether both sides show on idle sockets that they are there. */
    public boolean givesHeartbeats() {
        return version >= WITH_HEARTBEATS;
    }

    /** Whether there is a live admission with this key name; does not check that the peer has the key. */
    public boolean isNamedAt(InboundPort port) {
        return port.admissionOf(keyName) != null;
    }

    /**
     * The live admission whose key the peer has proven to have, or null.
     *
     * @param challenge as sent on this socket
     * @param location where the target listens, as its engine address gives it
     */
    public InboundAdmission admissionAt(InboundPort port, Challenge challenge, String location) {
        InboundAdmission named = port.admissionOf(keyName);
        if (named == null) {
            return null;
        }
        byte[] right = proof(
                challenge,
                location,
                version,
                role,
                count,
                nonce,
                named.admission().key());
        return MessageDigest.isEqual(right, proof) ? named : null;
    }

    public int lengthBytes() {
        return SHORT_LENGTH_BYTES + nonce.length;
    }

    /** The length of a hello whose first {@link #SHORT_LENGTH_BYTES} are given; that of an unknown version ends there. */
    static int lengthBytes(MemorySegment in) {
        int version = in.get(INT, VERSION_OFFSET);
        return version >= WITH_NONCE && version <= VERSION ? LENGTH_BYTES : SHORT_LENGTH_BYTES;
    }

    public void encode(MemorySegment out) {
        out.asSlice(0, lengthBytes()).fill((byte) 0);
        out.set(LONG, 0, MAGIC);
        out.set(INT, VERSION_OFFSET, version);
        out.set(INT, ROLE_OFFSET, role);
        MemorySegment.copy(keyName, 0, out, JAVA_BYTE, KEY_NAME_OFFSET, KeyProof.NAME_LENGTH_BYTES);
        out.set(INT, COUNT_OFFSET, count);
        MemorySegment.copy(proof, 0, out, JAVA_BYTE, PROOF_OFFSET, KeyProof.LENGTH_BYTES);
        MemorySegment.copy(nonce, 0, out, JAVA_BYTE, SHORT_LENGTH_BYTES, nonce.length);
    }

    /** Decodes a hello of any version; null when it is not of this protocol. */
    public static Hello parse(MemorySegment in) {
        if (in.get(LONG, 0) != MAGIC) {
            return null;
        }
        return new Hello(
                in.get(INT, VERSION_OFFSET),
                in.get(INT, ROLE_OFFSET),
                in.get(INT, COUNT_OFFSET),
                in.asSlice(KEY_NAME_OFFSET, KeyProof.NAME_LENGTH_BYTES).toArray(JAVA_BYTE),
                in.asSlice(PROOF_OFFSET, KeyProof.LENGTH_BYTES).toArray(JAVA_BYTE),
                in.asSlice(SHORT_LENGTH_BYTES, lengthBytes(in) - SHORT_LENGTH_BYTES)
                        .toArray(JAVA_BYTE));
    }

    /** Whether this side speaks a version from {@code oldest} to {@code newest}. */
    public static boolean speaks(int oldest, int newest) {
        return oldest <= VERSION && newest >= OLDEST_VERSION;
    }

    /** Describes a peer that speaks other versions. */
    public static String versionFault(int oldest, int newest) {
        return "the peer speaks version " + range(oldest, newest) + " on its data paths, this engine "
                + range(OLDEST_VERSION, VERSION)
                + ": install the same release on both sides, or two that follow each other";
    }

    private static String range(int oldest, int newest) {
        return oldest == newest ? Integer.toString(oldest) : oldest + " to " + newest;
    }
}
