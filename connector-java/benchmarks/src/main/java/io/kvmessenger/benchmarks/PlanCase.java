package io.kvmessenger.benchmarks;

import io.kvmessenger.benchmarks.ModelShape.MemoryOrder;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.PageLayout;

/** A transfer of a model between two shardings, for which the cost of planning and writing is reported. */
@SuppressWarnings("ImmutableEnumChecker") // layouts are values; kvlayout has no annotations to say so
public enum PlanCase {
    DEEPSEEK_R1_TP8_TO_TP8(ModelShape.DEEPSEEK_R1, PageLayout.LATENT, 8, 8),
    DEEPSEEK_R1_TP8_TO_TP1(ModelShape.DEEPSEEK_R1, PageLayout.LATENT, 8, 1),
    QWEN3_CODER_HND_TP8_TO_TP8(ModelShape.QWEN3_CODER_480B, PageLayout.HND, 8, 8),
    QWEN3_CODER_HND_TP8_TO_TP4(ModelShape.QWEN3_CODER_480B, PageLayout.HND, 8, 4),
    QWEN3_CODER_NHD_TP8_TO_TP8(ModelShape.QWEN3_CODER_480B, PageLayout.NHD, 8, 8),
    QWEN3_CODER_NHD_TP8_TO_TP4(ModelShape.QWEN3_CODER_480B, PageLayout.NHD, 8, 4),
    LLAMA_70B_HND_TP8_TO_TP8(ModelShape.LLAMA_70B, PageLayout.HND, 8, 8),
    LLAMA_70B_HND_TP4_TO_TP8(ModelShape.LLAMA_70B, PageLayout.HND, 4, 8),
    LLAMA_70B_NHD_TP8_TO_TP8(ModelShape.LLAMA_70B, PageLayout.NHD, 8, 8),
    LLAMA_70B_NHD_TP4_TO_TP8(ModelShape.LLAMA_70B, PageLayout.NHD, 4, 8);

    private final ModelShape model;
    private final PageLayout layout;
    private final int sourceTp;
    private final int targetTp;

    PlanCase(ModelShape model, PageLayout layout, int sourceTp, int targetTp) {
        this.model = model;
        this.layout = layout;
        this.sourceTp = sourceTp;
        this.targetTp = targetTp;
    }

    ModelShape model() {
        return model;
    }

    KvGeometry source(MemoryOrder order) {
        return model.geometry(layout, sourceTp, order);
    }

    KvGeometry target(MemoryOrder order) {
        return model.geometry(layout, targetTp, order);
    }

    String sharding() {
        return "TP " + sourceTp + " → TP " + targetTp;
    }

    String layoutName() {
        return layout.name();
    }
}
