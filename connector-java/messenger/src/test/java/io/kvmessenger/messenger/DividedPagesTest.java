package io.kvmessenger.messenger;

import static org.assertj.core.api.Assertions.assertThat;

import com.google.protobuf.ByteString;
import io.kvmessenger.messenger.decode.SourceCoverage;
import io.kvmessenger.messenger.port.ChecksumMode;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.wire.ControlFrame;
import io.kvmessenger.messenger.wire.FrameVersions;
import io.kvmessenger.messenger.wire.Shares;
import io.kvmessenger.transfer.TransferRequest.PagedWrites;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** A prefiller of two ranks that divide the pages of latent KV; one messenger serves both. */
class DividedPagesTest extends MessengerPair {
    private static final int LAYERS = 2;

    @BeforeEach
    void divide() {
        make(ChecksumMode.OFF);
        meet();
    }

    private void make(ChecksumMode checksums) {
        prefiller = new Side("prefiller", 1, 0, ChecksumMode.OFF, Geometries.latent(2, 2));
        decoder = new Side("decoder", 2, 0, checksums, Geometries.latent(1, 1));
        fetch("warm-up", 1, 0);
    }

    /** The prefiller has posted nothing, whatever it computes: a test says what lands, and which pages were whose. */
    private void grantOnly() {
        fetch("r", 0, 0);
        decoder.messenger.doWork();
        assertThat(decoder.wire.take()).anyMatch(ControlFrame::hasGrant);
    }

    private void say(int... sharesOfRanks) {
        Shares.Builder shares = Shares.newBuilder().setGrantId(FIRST_GRANT);
        for (int share : sharesOfRanks) {
            shares.addPages(ByteString.copyFrom(new byte[] {(byte) share}));
        }
        decoder.messenger.onFrame(
                Wire.DIALLED_LINK, ControlFrame.newBuilder().setShares(shares).build());
        decoder.messenger.doWork();
    }

    /** The writes of a whole prompt, as a prefiller that has all pages on one rank would post them. */
    private List<PagedWrites> writes() {
        landsLate = true;
        fetch("r", 0, 0);
        carry();
        compute("r", 0);
        carry();
        return prefiller.transfer.requests.stream().map(PagedWrites.class::cast).toList();
    }

    private void land(PagedWrites write) {
        decoder.transfer.land(write);
        nowNs += 1;
        carry();
    }

    @Test
    void shouldTakeEachPageFromTheRankThatHasIt() {
        List<PagedWrites> writes = writes(); // of pages 5 and 6 of all: page 2 of rank 1, and page 3 of rank 0
        assertThat(writes).hasSize(2 * LAYERS);
        List<String> moved = writes.stream()
                .map(write -> write.sourcePages().offsetOf(0)
                                % (Geometries.PAGE_TOKENS * Geometries.PAGE_COUNT)
                                / Geometries.PAGE_TOKENS
                        + " to "
                        + write.targetPages().offsetOf(0)
                                % (Geometries.PAGE_TOKENS * Geometries.PAGE_COUNT)
                                / Geometries.PAGE_TOKENS)
                .toList();
        assertThat(moved).containsExactlyInAnyOrder("2 to 0", "3 to 1", "2 to 0", "3 to 1");
    }

    @Test
    void shouldArriveWhenAllThatEachOwesHasBeenCounted() {
        List<PagedWrites> writes = writes();
        for (PagedWrites write : writes) {
            assertThat(decoder.reported).isEmpty();
            land(write);
        }
        assertThat(decoder.reported).containsExactly("arrived r");
    }

    @Test
    void shouldArriveWhenTheSharesComeBehindTheLastByte() {
        landsLate = true;
        List<ControlFrame> held = new ArrayList<>();
        fetch("r", 0, 0);
        carry();
        compute("r", 0);
        prefiller.messenger.doWork();
        prefiller.messenger.doWork();
        held.addAll(prefiller.wire.take());
        prefiller.transfer.requests.forEach(decoder.transfer::land);
        decoder.messenger.doWork();
        assertThat(decoder.reported).isEmpty();
        held.forEach(frame -> decoder.messenger.onFrame(Wire.DIALLED_LINK, frame));
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("arrived r");
    }

    /** Bit k: page k of the grant. All of them add up to two pages. */
    static Stream<int[]> sharesWithAGap() {
        return Stream.of(new int[] {0b01, 0b01}, new int[] {0b10, 0b10});
    }

    @ParameterizedTest
    @MethodSource("sharesWithAGap")
    void shouldNotTakeAPageThatCameTwiceForOneThatDidNotCome(int[] shares) {
        List<PagedWrites> writes = writes();
        prefiller.wire.take();
        make(ChecksumMode.OFF);
        meet();
        grantOnly();
        say(shares);
        writes.forEach(decoder.transfer::land);
        nowNs += 1;
        decoder.messenger.doWork();
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure)
                .contains("of the 2 pages of transfer t-r")
                .contains("sent 1 twice and 1 not at all");
    }

    /** Too few, too many, another page than was granted. */
    static Stream<int[]> invalidShares() {
        return Stream.of(new int[] {}, new int[] {0b11}, new int[] {0b01, 0b10, 0}, new int[] {0b001, 0b110});
    }

    @ParameterizedTest
    @MethodSource("invalidShares")
    void shouldEndTheSessionOfSharesThatAreNotThoseOfItsRanks(int[] shares) {
        grantOnly();
        say(shares);
        assertThat(decoder.wire.take()).anyMatch(ControlFrame::hasGoodbye);
    }

    @Test
    void shouldEndTheSessionOfSharesThatAreSentTwice() {
        grantOnly();
        say(0b01, 0b10);
        assertThat(decoder.wire.take()).noneMatch(ControlFrame::hasGoodbye);
        say(0b01, 0b10);
        assertThat(decoder.wire.take()).anyMatch(ControlFrame::hasGoodbye);
    }

    @Test
    void shouldNotWaitForARankThatHasNoPage() {
        landsLate = false;
        fetch("r", 0, 0);
        carry();
        beginStep(new EngineCommand.Chunk("r", "t-r", PROMPT_TOKENS, 0, 0, PROMPT_TOKENS, 0, new int[] {5, 7}));
        endStep();
        carry();
        nowNs += 1;
        carry();
        assertThat(decoder.reported).containsExactly("arrived r");
        assertThat(prefiller.transfer.requests).as("of rank 1 alone").hasSize(LAYERS);
    }

    @Test
    void shouldFailAndHoldNothingWhenTheSessionEndsBeforeTheSharesAreKnown() {
        grantOnly();
        decoder.messenger.onLinkClosed(Wire.DIALLED_LINK, "reset");
        decoder.messenger.doWork();
        assertThat(decoder.transfer.revoked).as("nothing can be complete").hasSize(1);
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void shouldBeCancelledWhereverItIs(boolean allLanded) {
        List<PagedWrites> writes = writes();
        decoder.cache.onCommand(new EngineCommand.Abandon("r"));
        decoder.messenger.doWork();
        writes.subList(0, allLanded ? writes.size() : 1).forEach(decoder.transfer::land);
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
        nowNs += 1;
        carry();
        if (!allLanded) {
            assertThat(decoder.reported).as("completed is not delivered").isEmpty();
            writes.subList(1, writes.size()).forEach(this::land);
        }
        assertThat(decoder.reported).containsExactly("failed r");
    }

    @Test
    void shouldGrantAgainAfterAPreemptionAndTakeTheNextSharesForTheNewOnes() {
        fetch("r", 0, 0);
        carry();
        beginPass("r");
        prefiller.cache.onCommand(new EngineCommand.Preempt(List.of("r"), new CompletableFuture<>()));
        while (!prefiller.transfer.submitted.isEmpty()) {
            completeOneWrite();
        }
        carry();
        nowNs += 1;
        carry();
        assertThat(decoder.reported).isEmpty();
        beginStep(new EngineCommand.Chunk("r", "t-r", PROMPT_TOKENS, 0, 0, PROMPT_TOKENS, 0, new int[] {6, 7}));
        endStep();
        carry();
        nowNs += 1;
        carry();
        assertThat(decoder.reported).containsExactly("arrived r");
    }

    @Test
    void shouldRefuseAGrantThatAsksForChecksums() {
        make(ChecksumMode.FULL);
        meet();
        fetch("r", 0, 0);
        carry();
        compute("r", 0);
        carry();
        assertThat(decoder.reported).containsExactly("failed r");
        assertThat(decoder.lastFailure).contains("set the decoder's page_checksum to off");
    }

    @Test
    void shouldRefuseAnEarlierBuildThatWouldTakeItForAllPages() {
        make(ChecksumMode.OFF);
        prefiller.messenger.onLinkOpened(Wire.DIALLED_LINK, true, "there:1");
        decoder.messenger.onLinkOpened(Wire.DIALLED_LINK, false, "host:7");
        prefiller.wire.take().forEach(frame -> decoder.messenger.onFrame(Wire.DIALLED_LINK, frame));
        for (ControlFrame frame : decoder.wire.take()) {
            ControlFrame.Builder earlier = frame.toBuilder();
            earlier.getHelloBuilder().setNewestVersion(FrameVersions.SHARES - 1);
            prefiller.messenger.onFrame(Wire.DIALLED_LINK, earlier.build());
        }
        assertThat(prefiller.wire.take())
                .anySatisfy(frame -> assertThat(frame.getRefusal().getSentence())
                        .contains("divide their pages (--enable-kv-cache-sharding)")
                        .contains("install the same kv-connector on both sides"));
    }

    /** The messengers of one engine, by the ranks that each serves; one is missing, or there twice. */
    static Stream<int[][]> ranksThatDoNotCover() {
        return Stream.of(new int[][] {{0}}, new int[][] {{1}}, new int[][] {{0}, {0}}, new int[][] {{0, 1}, {1}});
    }

    @ParameterizedTest
    @MethodSource("ranksThatDoNotCover")
    void shouldGrantNothingToRanksThatLackAShareOrHaveItTwice(int[][] ranks) {
        SourceCoverage coverage = new SourceCoverage(Geometries.latent(2, 1));
        EngineCommand.Fetch ask = fetchOf("r", 0, 0, "", EngineCommand.Prompt.NONE);
        assertThat(coverage.gap(
                        Stream.of(ranks).map(of -> Geometries.latent(2, 2, of)).toList(), ask, "p"))
                .contains("name every messenger of one prefiller's engine, and no other");
        assertThat(coverage.gap(List.of(Geometries.latent(2, 2, 1), Geometries.latent(2, 2, 0)), ask, "p"))
                .isEmpty();
    }
}
