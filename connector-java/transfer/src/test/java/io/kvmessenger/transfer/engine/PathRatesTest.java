package io.kvmessenger.transfer.engine;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.Arrays;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** Networks of known rates, in time that the test moves: what each takes is what {@link PathRates} lets it take. */
final class PathRatesTest {
    private static final long MIB = 1 << 20;
    private static final long STEP_NS = 50_000;
    private static final double GBIT = 0.125; // bytes a nanosecond
    private static final double[] UNLIKE = {GBIT, GBIT / 4};
    private static final int SEEDS = 300;

    private final PathRates rates = new PathRates(0);
    private double[] bytesPerNs = {};
    private double[] heldBytes = {};
    /** Before this time nothing of what a network was given is acknowledged. */
    private long[] firstAckNs = {};

    private long roundTripNs;
    private long nowNs;
    private long waitingBytes;
    private long[] takenBytes = {};

    private void open(double... ofNetworks) {
        bytesPerNs = ofNetworks.clone();
        heldBytes = new double[ofNetworks.length];
        takenBytes = new long[ofNetworks.length];
        firstAckNs = new long[ofNetworks.length];
        for (int network = 0; network < ofNetworks.length; network++) {
            rates.setOpen(network, true, nowNs);
        }
    }

    private void step() {
        nowNs += STEP_NS;
        for (int network = 0; network < bytesPerNs.length; network++) {
            if (nowNs >= firstAckNs[network]) {
                heldBytes[network] = Math.max(0, heldBytes[network] - bytesPerNs[network] * STEP_NS);
            }
            if (rates.isSampleDue(network, nowNs)) {
                rates.sample(network, (long) heldBytes[network], nowNs);
            }
            take(network);
        }
    }

    private void take(int network) {
        while (waitingBytes > 0 && heldBytes[network] < rates.committedBytes(network)) {
            long slice = Math.min(waitingBytes, rates.sliceBytes(network));
            if (!rates.mayTake(network, slice, waitingBytes)) {
                return;
            }
            if (heldBytes[network] == 0) {
                firstAckNs[network] = nowNs + roundTripNs;
            }
            waitingBytes -= slice;
            heldBytes[network] += slice;
            takenBytes[network] += slice;
            rates.onGiven(network, slice);
        }
    }

    /** How long it takes until all is acknowledged. */
    private long transfer(long lengthBytes) {
        waitingBytes = lengthBytes;
        long beganNs = nowNs;
        while (waitingBytes > 0 || Arrays.stream(heldBytes).sum() > 0) {
            step();
            assertThat(nowNs - beganNs).as("it ends").isLessThan(60_000_000_000L);
        }
        return nowNs - beganNs;
    }

    private void rest() {
        for (long endNs = nowNs + 2 * PathRates.SAMPLE_NS; nowNs < endNs; ) {
            step();
        }
    }

    private double bestNs(long lengthBytes) {
        return lengthBytes / Arrays.stream(bytesPerNs).sum();
    }

    @Test
    void shouldLearnTheRates() {
        open(UNLIKE);
        transfer(20 * MIB);
        assertThat(rates.bytesPerNs(0)).isBetween(0.9 * UNLIKE[0], 1.1 * UNLIKE[0]);
        assertThat(rates.bytesPerNs(1)).isBetween(0.9 * UNLIKE[1], 1.1 * UNLIKE[1]);
    }

    @Test
    void shouldCommitANetworkToWhatItMovesSoonAndTwoSlicesAtLeast() {
        open(8 * GBIT, GBIT / 100);
        assertThat(rates.committedBytes(0)).isEqualTo(2 * PathRates.SLICE_MIN_BYTES);
        transfer(100 * MIB);
        assertThat((double) rates.committedBytes(0)).isBetween(0.9 * 8 * GBIT * 2e6, 1.1 * 8 * GBIT * 2e6);
        assertThat(rates.sliceBytes(0)).isGreaterThan(4 * PathRates.SLICE_MIN_BYTES);
        assertThat(rates.committedBytes(1)).isEqualTo(2 * PathRates.SLICE_MIN_BYTES);
        assertThat(rates.sliceBytes(1)).isEqualTo(PathRates.SLICE_MIN_BYTES);
    }

    @Test
    void shouldEndAShortRequestWhenTheNetworksTogetherCan() {
        open(UNLIKE);
        transfer(4 * MIB);
        for (int request = 0; request < 20; request++) {
            assertThat((double) transfer(4 * MIB)).isLessThan(1.2 * bestNs(4 * MIB));
        }
    }

    /** Although the slow one is asked first. */
    @Test
    void shouldGiveASmallRequestToTheFastNetworkAlone() {
        open(UNLIKE[1], UNLIKE[0]);
        transfer(20 * MIB);
        Arrays.fill(takenBytes, 0);
        for (int request = 0; request < 20; request++) {
            rest();
            transfer(PathRates.SLICE_MIN_BYTES);
        }
        assertThat(takenBytes).containsExactly(0, 20 * PathRates.SLICE_MIN_BYTES);
    }

    @Test
    void shouldFollowANetworkThatTurnsSlow() {
        open(GBIT, GBIT);
        waitingBytes = 100 * MIB;
        while (waitingBytes > 50 * MIB) {
            step();
        }
        bytesPerNs[1] /= 10;
        double fairNs = bestNs(waitingBytes);
        assertThat((double) transfer(waitingBytes)).isLessThan(1.1 * fairNs);
    }

    @Test
    void shouldFollowANetworkThatTurnsFastAgain() {
        open(GBIT, GBIT / 100);
        transfer(20 * MIB);
        bytesPerNs[1] = GBIT;
        transfer(20 * MIB);
        assertThat((double) transfer(100 * MIB)).isLessThan(1.05 * bestNs(100 * MIB));
    }

    @Test
    void shouldNotTakeARoundTripForSlowness() {
        roundTripNs = PathRates.FIRST_ACK_NS / 2;
        open(GBIT, GBIT);
        transfer(100 * MIB);
        double before = rates.bytesPerNs(0);
        for (int request = 0; request < 20; request++) {
            transfer(PathRates.SLICE_MIN_BYTES);
        }
        assertThat(rates.bytesPerNs(0)).isGreaterThanOrEqualTo(before);
    }

    @Test
    void shouldTakeASilentNetworkForASlowOne() {
        open(GBIT, GBIT);
        transfer(20 * MIB);
        bytesPerNs[1] = 0;
        waitingBytes = 100 * MIB;
        for (long endNs = nowNs + 10 * PathRates.MEMORY_NS; nowNs < endNs; ) {
            step();
        }
        assertThat(rates.bytesPerNs(1)).isLessThan(GBIT / 100);
    }

    /** Whatever is waited for, one of the networks takes it: nothing waits for ever. */
    @Test
    void shouldAlwaysLetOneNetworkTakeWhatWaits() {
        for (long seed = 0; seed < SEEDS; seed++) {
            Random random = new Random(seed);
            PathRates drawn = new PathRates(0);
            int count = 1 + random.nextInt(8);
            for (int network = 0; network < count; network++) {
                // Of every other seed the networks are alike.
                Random draw = seed % 2 == 0 ? new Random(seed) : random;
                drawn.setOpen(network, true, 0);
                for (long sample = 1; sample <= 4; sample++) {
                    drawn.onGiven(network, 1 << 20);
                    drawn.sample(network, 1 + draw.nextInt(1 << 20), sample * 2 * PathRates.KNOWN_AFTER_NS);
                }
                drawn.onGiven(network, draw.nextInt(1 << 20));
            }
            boolean taken = false;
            for (int network = 0; network < count; network++) {
                taken |= drawn.mayTake(network, PathRates.SLICE_MIN_BYTES, PathRates.SLICE_MIN_BYTES);
            }
            assertThat(taken).as("seed %d", seed).isTrue();
        }
    }

    /** An immediate without pages waits for no network of which nothing is known. */
    @Test
    void shouldLetAKnownNetworkTakeAnImmediate() {
        open(GBIT, GBIT);
        transfer(20 * MIB);
        rates.setOpen(1, false, nowNs);
        rates.setOpen(1, true, nowNs);
        assertThat(rates.mayTake(0, 0, 0)).isTrue();
        assertThat(rates.mayTake(1, 0, 0)).isTrue();
    }

    /** Rates of any relation, from the first byte on and once known. */
    @Test
    void shouldKeepAllNetworksBusy() {
        for (long seed = 0; seed < SEEDS / 10; seed++) {
            Random random = new Random(seed);
            PathRatesTest drawn = new PathRatesTest();
            double[] ofNetworks = new double[1 + random.nextInt(4)];
            Arrays.setAll(ofNetworks, network -> GBIT * (0.05 + random.nextDouble()));
            drawn.open(ofNetworks);
            drawn.transfer(20 * MIB);
            assertThat((double) drawn.transfer(100 * MIB))
                    .as("seed %d", seed)
                    .isLessThan(drawn.bestNs(100 * MIB) / 0.95);
        }
    }

    @Test
    void shouldGiveUpANetworkThatIsSilentWhileAnotherIsNot() {
        open(GBIT, GBIT);
        transfer(20 * MIB);
        bytesPerNs[1] = 0;
        waitingBytes = 2000 * MIB;
        long silentNs = nowNs;
        while (!rates.isStalled(1, nowNs)) {
            step();
            assertThat(rates.isStalled(0, nowNs)).isFalse();
            assertThat(nowNs - silentNs).isLessThan(2 * PathRates.STALL_LIMIT_NS);
        }
        assertThat(nowNs - silentNs).isGreaterThanOrEqualTo(PathRates.STALL_LIMIT_NS);
        rates.setOpen(1, false, nowNs);
        assertThat(rates.isStalled(1, nowNs)).isFalse();
        rates.setOpen(1, true, nowNs);
        assertThat(rates.bytesPerNs(1))
                .as("nothing is known of what comes back")
                .isZero();
        assertThat(rates.mayTake(1, PathRates.SLICE_MIN_BYTES, PathRates.SLICE_MIN_BYTES))
                .isTrue();
    }

    /** As when the peer is stopped: no network is better than another. */
    @Test
    void shouldGiveUpNoNetworkWhileAllAreSilent() {
        open(GBIT, GBIT);
        transfer(20 * MIB);
        Arrays.fill(bytesPerNs, 0);
        waitingBytes = 20 * MIB;
        for (long endNs = nowNs + 3 * PathRates.STALL_LIMIT_NS; nowNs < endNs; ) {
            step();
            assertThat(rates.isStalled(0, nowNs) || rates.isStalled(1, nowNs)).isFalse();
        }
    }

    @Test
    void shouldTryANetworkThatWasIdleBeforeItsFirstSliceBesideOneThatIsKnown() {
        PathRates fresh = new PathRates(0);
        fresh.setOpen(0, true, 0);
        fresh.setOpen(1, true, 0);
        long nowNs = 50_000_000;
        fresh.sample(1, 0, nowNs);
        fresh.onGiven(0, 2 << 20);
        fresh.sample(0, 1 << 20, nowNs);
        assertThat(fresh.bytesPerNs(0)).isPositive();
        assertThat(fresh.mayTake(1, 1 << 16, 1 << 16)).isTrue();
    }
}
