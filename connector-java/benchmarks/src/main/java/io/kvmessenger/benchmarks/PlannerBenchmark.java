package io.kvmessenger.benchmarks;

import io.kvmessenger.kvlayout.ExpectedWrites;
import io.kvmessenger.kvlayout.HeadRange;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayerGeometry;
import io.kvmessenger.kvlayout.LayoutPlanner;
import io.kvmessenger.kvlayout.PageLayout;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.kvlayout.Sharding;
import io.kvmessenger.kvlayout.TransferPlan;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.Warmup;

/** What a plan costs between two peers, once for each pair, and the decoder's count, once for each request. */
@State(Scope.Benchmark)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@Fork(1)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
public class PlannerBenchmark {
    private static final int PAGE_COUNT = 1000;

    /** name: layout, layers, KV heads, page bytes of a head, TP of the source, TP of the target. */
    private enum Model {
        TINY_ALONE("HND", 4, 2, 16_384, 1, 1),
        LLAMA_70B_TP8("HND", 80, 8, 8192, 8, 8),
        QWEN3_235B_TP8_TO_TP4("HND", 94, 4, 8192, 8, 4),
        QWEN3_235B_TP8_TO_TP2_NHD("NHD", 94, 4, 8192, 8, 2),
        DEEPSEEK_R1_TP8("LATENT", 61, 1, 147_456, 8, 8);

        private final String layoutName;
        private final int layerCount;
        private final int kvHeadCount;
        private final int headPageBytes;
        private final int sourceTp;
        private final int targetTp;

        Model(String layoutName, int layerCount, int kvHeadCount, int headPageBytes, int sourceTp, int targetTp) {
            this.layoutName = layoutName;
            this.layerCount = layerCount;
            this.kvHeadCount = kvHeadCount;
            this.headPageBytes = headPageBytes;
            this.sourceTp = sourceTp;
            this.targetTp = targetTp;
        }

        KvGeometry source() {
            return geometry(sourceTp);
        }

        KvGeometry target() {
            return geometry(targetTp);
        }

        private KvGeometry geometry(int tpSize) {
            Sharding sharding = new Sharding(tpSize, 1, 1);
            List<RankGeometry> ranks = new ArrayList<>();
            for (int tpRank = 0; tpRank < tpSize; tpRank++) {
                HeadRange heads = sharding.headsOf(tpRank, kvHeadCount);
                int pageBytes = heads.count() * headPageBytes;
                List<LayerGeometry> layers = new ArrayList<>();
                for (int i = 0; i < layerCount; i++) {
                    String name = "model.layers." + i + ".self_attn.attn";
                    layers.add(new LayerGeometry(name, (long) i * PAGE_COUNT * pageBytes, pageBytes, pageBytes));
                }
                ranks.add(new RankGeometry(tpRank, 0, heads, PAGE_COUNT, layers));
            }
            return new KvGeometry(
                    "model", "bfloat16", 2, 16, PageLayout.parse(layoutName), kvHeadCount, sharding, ranks);
        }
    }

    @Param({"TINY_ALONE", "LLAMA_70B_TP8", "QWEN3_235B_TP8_TO_TP4", "QWEN3_235B_TP8_TO_TP2_NHD", "DEEPSEEK_R1_TP8"})
    public String model;

    private KvGeometry source;
    private KvGeometry target;

    @Setup
    public void describe() {
        Model chosen = Model.valueOf(model);
        source = chosen.source();
        target = chosen.target();
    }

    @Benchmark
    public TransferPlan plan() {
        return LayoutPlanner.plan(source, target);
    }

    @Benchmark
    public long expectedWrites() {
        return ExpectedWrites.pagePieces(source, target, 0, 100);
    }

    @Benchmark
    public String digest() {
        return source.digest();
    }
}
