package io.kvmessenger.testkit.transfer;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.kvmessenger.transfer.Admission;
import io.kvmessenger.transfer.GroupRequest;
import io.kvmessenger.transfer.GroupRequest.Barrier;
import io.kvmessenger.transfer.GroupRequest.Scatter;
import io.kvmessenger.transfer.GroupRequest.Scatter.Slice;
import io.kvmessenger.transfer.ImmWindow;
import io.kvmessenger.transfer.Peer;
import io.kvmessenger.transfer.PeerGroup;
import io.kvmessenger.transfer.RemoteWindow;
import io.kvmessenger.transfer.TransferCounter;
import io.kvmessenger.transfer.TransferEngine;
import io.kvmessenger.transfer.TransferFault;
import io.kvmessenger.transfer.TransferOptions;
import io.kvmessenger.transfer.WindowArea;
import io.kvmessenger.transfer.WindowRanges;
import io.kvmessenger.transfer.tcp.TcpTransport;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.BooleanSupplier;
import java.util.function.Predicate;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Requirements on every transport for requests to several peers. A transport's test inherits all of it. */
@Timeout(900)
public abstract class GroupContractTest {
    private static final int MEMBERS = 3;
    private static final int MEMORY_BYTES = 1 << 20;
    private static final byte GUARD = 0x5A;
    private static final int ROUNDS = 100;

    /** One target peer, and the writer's data about it. */
    private static final class Member {
        final DrivenEngine engine;
        final Admission admission;
        Peer peer;
        ImmWindow window;
        RemoteWindow remote;

        Member(TransferOptions options, String name) {
            engine = new DrivenEngine(options, name, MEMORY_BYTES);
            engine.memory().fill(GUARD);
            admission = engine.engine().admit("writer");
        }
    }

    private DrivenEngine writer;
    private final List<Member> members = new ArrayList<>();
    private PeerGroup group;

    /** The transport's name. */
    protected abstract String transport();

    protected TransferOptions options() {
        return TransferOptions.defaults().withTransports(transport()).with(TcpTransport.STREAMS_PER_PEER, 2);
    }

    @BeforeEach
    void connect() {
        writer = new DrivenEngine(options(), "writer", MEMORY_BYTES);
        byte[] bytes = new byte[MEMORY_BYTES];
        new Random(1).nextBytes(bytes);
        MemorySegment.copy(bytes, 0, writer.memory(), ValueLayout.JAVA_BYTE, 0, bytes.length);
        for (int i = 0; i < MEMBERS; i++) {
            Member member = new Member(options(), "member" + i);
            members.add(member);
            member.peer =
                    writer.engine().connect(member.engine.engine().address(), member.admission.key(), "member" + i);
        }
        await("all peers", () -> writer.ready.size() == MEMBERS);
        group = writer.engine()
                .group("all", members.stream().map(member -> member.peer).toList());
    }

    @AfterEach
    void close() {
        writer.close();
        members.forEach(member -> member.engine.close());
    }

    /** Lets all engines make progress until the condition holds. */
    private void await(String what, BooleanSupplier condition) {
        writer.await(what, () -> {
            for (Member member : members) {
                if (member.engine.poll() == 0) {
                    member.engine.engine().await(1);
                }
            }
            return condition.getAsBoolean();
        });
    }

    private void awaitAll(String what, Predicate<Member> condition) {
        await(what, () -> members.stream().allMatch(condition));
    }

    private void grant(long expectedWeight) {
        WindowRanges all = WindowRanges.ofEqual(new long[] {0}, MEMORY_BYTES);
        for (Member member : members) {
            WindowArea area = WindowArea.of(member.engine.region().descriptor(), all);
            member.window = member.engine.openWindow(member.admission, all, expectedWeight, 3);
            member.remote = writer.engine().allow(member.peer, member.window.imm(), area);
        }
    }

    private Slice slice(int member, long from, long to, long lengthBytes, int weight) {
        Member at = members.get(member);
        return new Slice(from, lengthBytes, at.engine.region().descriptor(), to, at.remote, weight);
    }

    private Scatter scatter(Slice... slices) {
        return new Scatter(writer.region(), List.of(slices));
    }

    private Barrier barrier() {
        return new Barrier(members.stream().map(member -> member.remote).toList(), 1);
    }

    private void submit(GroupRequest request, long cookie) {
        await("room for " + cookie, () -> {
            int result = writer.engine().submit(group, request, cookie);
            assertThat(result).isIn(TransferEngine.ACCEPTED, TransferEngine.BACK_PRESSURE);
            return result == TransferEngine.ACCEPTED;
        });
    }

    private void assertArrived(int member, long from, long to, long lengthBytes) {
        MemorySegment memory = members.get(member).engine.memory();
        assertThat(writer.memory().asSlice(from, lengthBytes).mismatch(memory.asSlice(to, lengthBytes)))
                .isEqualTo(-1);
        assertThat(WriterAndTarget.isGuard(memory.asSlice(0, to))).isTrue();
        assertThat(WriterAndTarget.isGuard(memory.asSlice(to + lengthBytes))).isTrue();
    }

    @Test
    void shouldScatterSlicesOfOneRegionToAllMembers() {
        grant(7);
        long end = MEMORY_BYTES - 4096;
        submit(scatter(slice(0, 11, 500, 300_001, 7), slice(1, 400_000, 0, 1, 7), slice(2, end, end, 4096, 7)), 1);
        awaitAll("the windows", member -> member.engine.filled.contains(3L));
        await("the completion", () -> writer.completed.contains(1L));
        assertArrived(0, 11, 500, 300_001);
        assertArrived(1, 400_000, 0, 1);
        assertArrived(2, end, end, 4096);
        assertThat(writer.endings).containsOnly(Map.entry(1L, 1));
    }

    /** A member's expectation does not depend on how many bytes there are for it. */
    @Test
    void shouldCountASliceWithoutBytes() {
        grant(2);
        submit(scatter(slice(0, 0, 0, 64, 2), slice(1, MEMORY_BYTES, MEMORY_BYTES, 0, 2), slice(2, 0, 0, 0, 2)), 1);
        awaitAll("the windows", member -> member.engine.filled.contains(3L));
        await("the completion", () -> writer.completed.contains(1L));
        assertThat(WriterAndTarget.isGuard(members.get(1).engine.memory())).isTrue();
        assertThat(WriterAndTarget.isGuard(members.get(2).engine.memory())).isTrue();
    }

    @Test
    void shouldCountABarrierAtEveryMember() {
        grant(ROUNDS);
        Barrier barrier = barrier();
        for (int i = 0; i < ROUNDS; i++) {
            submit(barrier, i);
        }
        awaitAll("the windows", member -> member.engine.filled.contains(3L));
        await("the completions", () -> writer.completed.size() == ROUNDS);
        assertThat(writer.endings.values()).containsOnly(1);
        assertThat(writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT))
                .isZero();
    }

    @Test
    void shouldFailForALostMemberAlone() {
        grant(Long.MAX_VALUE);
        Barrier barrier = barrier();
        submit(barrier, 1);
        await("the first", () -> writer.completed.contains(1L));
        Member gone = members.get(1);
        gone.engine.engine().revoke(gone.admission);
        await("the loss", () -> writer.lost.containsKey(gone.peer.id()));
        submit(barrier, 2);
        await("the end", () -> writer.failed.containsKey(2L));
        assertThat(writer.failedMembers.get(2L)).containsOnlyKeys(gone.peer);
        assertThat(writer.failedMembers.get(2L).get(gone.peer).fault()).isEqualTo(TransferFault.PEER_CLOSED);
        assertThat(writer.failed.get(2L).fault()).isEqualTo(TransferFault.PEER_CLOSED);
        assertThat(writer.failed.get(2L).detail()).contains("1 of 3 members", "group all", "member1");
        awaitAll("the others", member -> member == gone || member.window.arrivedWeight() == 2);
        assertThat(writer.endings).containsOnly(Map.entry(1L, 1), Map.entry(2L, 1));
    }

    /** The loss is unknown when they are submitted: they fail in flight, or afterwards. */
    @Test
    void shouldEndEveryRequestOnceWhileMembersAreLost() {
        grant(Long.MAX_VALUE);
        Member stays = members.get(1);
        Scatter scatter = scatter(IntStream.range(0, MEMBERS)
                .mapToObj(i -> slice(i, 0, 0, 100_000, 1))
                .toArray(Slice[]::new));
        for (int i = 0; i < ROUNDS; i++) {
            if (i == ROUNDS / 2) {
                members.get(0).engine.engine().revoke(members.get(0).admission);
                writer.engine().disconnect(members.get(2).peer);
            }
            submit(scatter, i);
        }
        await("all to end", () -> writer.endings.size() == ROUNDS);
        assertThat(writer.endings.values()).containsOnly(1);
        assertThat(writer.failed).hasSizeGreaterThanOrEqualTo(ROUNDS / 2);
        assertThat(writer.failed.keySet()).isEqualTo(writer.failedMembers.keySet());
        assertThat(writer.failedMembers.values()).noneMatch(failed -> failed.containsKey(stays.peer));
        await("what stays", () -> stays.window.arrivedWeight() == ROUNDS);
        assertThat(writer.engine().counters().of(TransferCounter.REQUESTS_IN_FLIGHT))
                .isZero();
    }

    @Test
    void shouldEndARequestToAGroupThatIsGone() {
        grant(1);
        Barrier barrier = barrier();
        members.forEach(member -> writer.engine().disconnect(member.peer));
        submit(barrier, 1);
        await("the end", () -> writer.failed.containsKey(1L));
        assertThat(writer.failedMembers.get(1L)).hasSize(MEMBERS);
    }

    @Test
    void shouldTakeNothingOfARequestThatIsRefusedForOneMember() {
        grant(1);
        Slice first = slice(0, 0, 0, 64, 1);
        Slice last = slice(2, 0, 0, 64, 1);
        assertRefused(
                scatter(first, slice(1, 0, MEMORY_BYTES - 63, 64, 1), last),
                "member 1 of group all, member1: target offset");
        assertRefused(scatter(last, slice(1, 0, 0, 64, 1), first), "member 0 of group all, member0: no window");
        assertRefused(new Barrier(List.of(members.getFirst().remote), 1), "1 parts, expected one for each of the 3");
        submit(barrier(), 2);
        awaitAll("the windows", member -> member.engine.filled.contains(3L));
        assertThat(members).allMatch(member -> WriterAndTarget.isGuard(member.engine.memory()));
        assertThat(writer.endings.keySet()).doesNotContain(1L);
    }

    private void assertRefused(GroupRequest request, String why) {
        assertThat(writer.engine().submit(group, request, 1)).isEqualTo(TransferEngine.REFUSED);
        assertThat(writer.engine().refusal()).contains(why);
    }

    @Test
    void shouldRefuseAGroupThatIsNone() {
        TransferEngine engine = writer.engine();
        Peer first = members.getFirst().peer;
        assertThatThrownBy(() -> engine.group("none", List.of())).hasMessageContaining("at least one");
        assertThatThrownBy(() -> engine.group("twice", List.of(first, first))).hasMessageContaining("each once");
        engine.disconnect(first);
        assertThatThrownBy(() -> engine.group("gone", List.of(first))).hasMessageContaining("no live peer");
    }
}
