package io.kvmessenger.messenger.kv;

import static org.assertj.core.api.Assertions.assertThat;

import io.kvmessenger.kvlayout.GroupKind;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Which ranks of a decoder's engine a prefiller waits for before it gives its pages back. */
class EngineRanksTest {
    private static final int PAGE_TOKENS = 4;
    private static final int HEADS = 2;
    private static final KvGroup GROUP =
            new KvGroup(GroupKind.FULL_ATTENTION, "int8", 1, PAGE_TOKENS, PageLayout.HND, HEADS, 8);

    /** One messenger's part of an engine: the stage's layer, with the heads of one TP rank. */
    private static KvGeometry messenger(Sharding sharding, int tpRank, int stage) {
        int pageBytes = PAGE_TOKENS * HEADS / sharding.tpSize();
        LayerGeometry layer = new LayerGeometry("layers." + stage, 0, pageBytes, pageBytes);
        return new KvGeometry("m", sharding, List.of(GROUP), List.of(new RankGeometry(tpRank, stage, List.of(layer))));
    }

    @Test
    void shouldWaitForEveryPipelineStageOfADecoder() {
        Sharding three = new Sharding(1, 3, 1);
        KvGeometry prefiller = messenger(Sharding.ALONE, 0, 0);
        EngineRanks needing = new KvPeer(prefiller, messenger(three, 0, 1)).needingRanks();
        EngineRanks answered = EngineRanks.of(messenger(three, 0, 0));

        assertThat(needing.complete()).isTrue();
        assertThat(answered.containsAll(needing)).isFalse();
        answered.add(EngineRanks.of(messenger(three, 0, 2)));
        assertThat(answered.containsAll(needing))
                .as("the second stage has not answered")
                .isFalse();
        answered.add(EngineRanks.of(messenger(three, 0, 1)));
        assertThat(answered.containsAll(needing)).isTrue();
    }

    @Test
    void shouldWaitForTheRanksOfAllStagesThatNeedItsHeadsAndForNoOthers() {
        Sharding fours = new Sharding(2, 2, 1);
        KvGeometry firstHead = messenger(new Sharding(2, 1, 1), 0, 0);
        EngineRanks needing = EngineRanks.needing(firstHead, messenger(fours, 0, 0));
        EngineRanks answered = EngineRanks.of(messenger(fours, 0, 0));

        assertThat(answered.containsAll(needing)).isFalse();
        answered.add(EngineRanks.of(messenger(fours, 0, 1)));
        assertThat(answered.containsAll(needing)).isTrue();
        assertThat(needing.intersects(EngineRanks.of(messenger(fours, 1, 1)))).isFalse();
    }
}
