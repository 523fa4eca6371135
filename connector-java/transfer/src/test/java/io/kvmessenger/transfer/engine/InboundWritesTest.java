package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.foreign.FfmLibC;
import io.kvmessenger.foreign.LibC;
import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.Imm;
import io.kvmessenger.transfer.Memory;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.device.DeviceAccess;
import io.kvmessenger.transfer.engine.WindowTable.Window;
import io.kvmessenger.transfer.spi.Figures;
import io.kvmessenger.transfer.spi.InboundAdmission;
import io.kvmessenger.transfer.spi.KeyProof;
import io.kvmessenger.transfer.staging.Staging;
import io.kvmessenger.transfer.staging.StagingLimits;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

final class InboundWritesTest {
    private static final LibC LIB_C = new FfmLibC();
    private static final long LENGTH_BYTES = 4096;

    private final RegionTable regions = new RegionTable(LIB_C);
    private final WindowTable windows = new WindowTable(EngineLimits.of(TransferOptions.defaults()), window -> {});
    private final CompletionRing completions = new CompletionRing(1 << 10, () -> {});
    private final Figures figures = new Figures();
    private final InboundWrites inboundWrites = new InboundWrites(
            windows, regions, completions, figures, new Staging(DeviceAccess.NONE, StagingLimits.STANDARD));
    private final MemorySegment message = MemorySegment.ofArray(new byte[] {1});

    private InboundAdmission admit(int id) {
        byte[] key = new byte[Admission.KEY_LENGTH_BYTES];
        key[0] = (byte) id;
        inboundWrites.admit(new Admission(id, "writer " + id, key));
        return inboundWrites.admissionOf(KeyProof.nameOf(key));
    }

    private Window window(InboundAdmission of) {
        return window(of, 1);
    }

    private Window window(InboundAdmission of, long expectedWeight) {
        RegisteredRegion region = regions.add(Memory.host(Arena.ofAuto().allocate(LENGTH_BYTES)));
        WindowArea area = WindowArea.of(region.descriptor(), WindowRanges.ofEqual(new long[] {0}, LENGTH_BYTES));
        return windows.open(of.admission(), List.of(region), area, expectedWeight, 7);
    }

    @Test
    void shouldCountOnlyForTheWindowsOwnPeer() {
        InboundAdmission owner = admit(1);
        InboundAdmission other = admit(2);
        Window window = window(owner);
        inboundWrites.onArrived(other, Imm.withWeight(window.imm(), 1), 1);
        assertThat(window.arrivedWeight()).isZero();
        assertThat(figures.of(TransferCounter.STRAYS)).isEqualTo(1);
        assertThat(completions.size()).isZero();
        inboundWrites.onArrived(owner, Imm.withWeight(window.imm(), 1), 1);
        assertThat(window.arrivedWeight()).isEqualTo(1);
        assertThat(completions.size()).isEqualTo(1);
    }

    /** A window is one word for all workers: whichever counts the last of it tells, and no other does. */
    @Test
    void shouldFillAWindowAtTheSumOfWhatAllWorkersCounted() {
        CompletionRing ofOther = new CompletionRing(1 << 10, () -> {});
        InboundWrites other = new InboundWrites(
                windows, regions, ofOther, new Figures(), new Staging(DeviceAccess.NONE, StagingLimits.STANDARD));
        InboundAdmission here = admit(1);
        other.admit(here.admission());
        InboundAdmission there =
                other.admissionOf(KeyProof.nameOf(here.admission().key()));
        Window window = window(here, 5);
        inboundWrites.onArrived(here, window.imm(), 2);
        other.onArrived(there, window.imm(), 2);
        assertThat(completions.size() + ofOther.size()).isZero();
        other.onArrived(there, window.imm(), 1);
        assertThat(window.arrivedWeight()).isEqualTo(5);
        assertThat(kindsOf(ofOther)).containsExactly(CompletionRing.WINDOW_FILLED);
        assertThat(kindsOf(completions)).isEmpty();
        inboundWrites.onArrived(here, window.imm(), 1);
        assertThat(kindsOf(completions)).containsExactly(CompletionRing.WINDOW_OVERSHOT);
        assertThat(kindsOf(ofOther)).isEmpty();
    }

    private static List<Integer> kindsOf(CompletionRing ring) {
        List<Integer> kinds = new ArrayList<>();
        ring.drain((kind, cookie, value, subject, detail) -> kinds.add(kind), 64);
        return kinds;
    }

    /** The decoder takes its pages back after a revocation: a link that was not told would let the peer write on. */
    @Test
    void shouldNotifyTheLinkOfARevokedAdmissionAndEndOneWithoutALinkAtOnce() {
        InboundAdmission linked = admit(1);
        InboundAdmission unused = admit(2);
        InboundAdmission other = admit(3);
        List<String> reported = new ArrayList<>();
        linked.claim(reported::add);
        other.claim(detail -> reported.add("the other: " + detail));
        inboundWrites.revoke(linked.admission(), "revoked");
        assertThat(reported).containsExactly("revoked");
        assertThat(completions.size()).as("it ends when its link proves that").isZero();
        assertThat(inboundWrites.entryOf(linked.admission())).isSameAs(linked);
        inboundWrites.revoke(unused.admission(), "revoked");
        assertThat(kindsOf(completions)).containsExactly(CompletionRing.ADMISSION_CLOSED);
        assertThat(inboundWrites.entryOf(unused.admission())).isNull();
        assertThat(inboundWrites.admissionOf(KeyProof.nameOf(unused.admission().key())))
                .isNull();
        assertThat(inboundWrites.entryOf(other.admission())).isSameAs(other);
    }

    /** A decoder whose prefiller died before it wrote need not wait for what can never land. */
    @Test
    void shouldEndAnUnusedAdmissionAndLeaveOneThatALinkUses() {
        InboundAdmission linked = admit(1);
        linked.claim(reason -> {
            throw new AssertionError("the link is to stay: " + reason);
        });
        inboundWrites.revokeUnused(linked.admission(), "unused");
        assertThat(inboundWrites.entryOf(linked.admission())).isSameAs(linked);
        assertThat(completions.size()).isZero();
        InboundAdmission unused = admit(2);
        inboundWrites.revokeUnused(unused.admission(), "unused");
        assertThat(inboundWrites.entryOf(unused.admission())).isNull();
        assertThat(completions.size()).isEqualTo(1);
        inboundWrites.revokeUnused(unused.admission(), "unused");
        assertThat(completions.size()).as("it is closed once").isEqualTo(1);
    }

    /** Else a fetch waits out its limit for a peer that died while it connected. */
    @Test
    void shouldAllowNoFurtherLinkToAnAdmissionRevokedWhileALinkUsesIt() {
        InboundAdmission unused = admit(1);
        unused.claim(reason -> {});
        inboundWrites.revokeUnused(unused.admission(), "unused");
        assertThat(unused.allowsFurtherLink()).isFalse();
        InboundAdmission revoked = admit(2);
        revoked.claim(reason -> {});
        inboundWrites.revoke(revoked.admission(), "revoked");
        assertThat(revoked.allowsFurtherLink()).isFalse();
        assertThat(admit(3).allowsFurtherLink()).isTrue();
    }

    /** A link that never became ready gives the key back, and says so while it is revoked. */
    @Test
    void shouldEndARevokedAdmissionWhoseLinkGivesItBackMeanwhile() {
        InboundAdmission linked = admit(1);
        linked.claim(detail -> linked.giveBack());
        inboundWrites.revoke(linked.admission(), "revoked");
        assertThat(kindsOf(completions)).containsExactly(CompletionRing.ADMISSION_CLOSED);
        inboundWrites.revoke(linked.admission(), "revoked");
        inboundWrites.onClosed(linked, "again");
        assertThat(completions.size()).as("told once").isZero();
    }

    /** A hostile peer could fill the ring with them. */
    @Test
    void shouldTakeAsManyAnswersOfAPeerAsItWasAsked() {
        InboundAdmission owner = admit(1);
        MemorySegment answer = new ReadAnswer(Imm.of(1, 0), 0, ReadAnswer.SENT).encode();
        assertThat(inboundWrites.onReadEnded(owner, answer)).isFalse();
        assertThat(owner.ask(message)).isTrue();
        assertThat(inboundWrites.onReadEnded(owner, message))
                .as("it is no answer")
                .isFalse();
        assertThat(inboundWrites.onReadEnded(owner, answer)).isTrue();
        assertThat(inboundWrites.onReadEnded(owner, answer)).isFalse();
        assertThat(completions.size()).isEqualTo(1);
    }

    @Test
    void shouldSayOnceThatARefusedMessageWaitsForRoom() {
        InboundAdmission from = admit(1);
        for (int i = 0; i < InboundWrites.MESSAGES_MAX; i++) {
            assertThat(inboundWrites.onMessage(from, message)).isTrue();
        }
        assertThat(inboundWrites.releaseMessage()).as("none was refused").isFalse();
        assertThat(inboundWrites.onMessage(from, message)).isTrue();
        assertThat(inboundWrites.onMessage(from, message)).isFalse();
        assertThat(inboundWrites.releaseMessage()).as("one was refused").isTrue();
        assertThat(inboundWrites.releaseMessage()).as("the worker was told").isFalse();
    }
}
