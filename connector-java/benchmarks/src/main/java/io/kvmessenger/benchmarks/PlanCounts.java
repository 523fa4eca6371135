package io.kvmessenger.benchmarks;

import io.kvmessenger.benchmarks.ModelShape.MemoryOrder;
import io.kvmessenger.kvlayout.ExpectedWrites;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.LayoutPlanner;
import io.kvmessenger.kvlayout.Piece;
import io.kvmessenger.kvlayout.TransferPlan;
import java.util.Locale;
import java.util.stream.IntStream;

/** Number of writes that a request needs, by model, sharding and layout: the table of docs/sharding.md. Pure. */
public final class PlanCounts {
    static final int TOKEN_COUNT = 4096;

    private PlanCounts() {}

    public static void main(String[] arguments) {
        System.out.print(table());
    }

    static String table() {
        StringBuilder table = new StringBuilder("""
                | model | sharding | layout | MB | bytes a piece | pieces = writes, not joined | layers outermost, apart | in order | pages outermost, apart | in order |
                |---|---|---|--:|--:|--:|--:|--:|--:|--:|
                """);
        for (PlanCase planCase : PlanCase.values()) {
            table.append(row(planCase));
        }
        return table.toString();
    }

    private static String row(PlanCase planCase) {
        KvGeometry source = planCase.source(MemoryOrder.LAYERS_OUTERMOST);
        KvGeometry target = planCase.target(MemoryOrder.LAYERS_OUTERMOST);
        long lengthBytes = bytes(LayoutPlanner.plan(source, target), TOKEN_COUNT);
        long pieceCount = pieces(source, target);
        return String.format(
                Locale.ROOT,
                "| %s | %s | %s | %,d | %,d | %,d | %,d | %,d | %,d | %,d |%n",
                planCase.model().title(),
                planCase.sharding(),
                planCase.layoutName(),
                lengthBytes / 1_000_000,
                lengthBytes / pieceCount,
                pieceCount,
                writes(planCase, MemoryOrder.LAYERS_OUTERMOST, 2),
                writes(planCase, MemoryOrder.LAYERS_OUTERMOST, 1),
                writes(planCase, MemoryOrder.PAGES_OUTERMOST, 2),
                writes(planCase, MemoryOrder.PAGES_OUTERMOST, 1));
    }

    static long bytes(TransferPlan plan, int tokenCount) {
        return plan.pieces()
                .mapToLong((Piece piece) -> (long) piece.partCount(tokenCount) * piece.lengthBytes())
                .sum();
    }

    private static long pieces(KvGeometry source, KvGeometry target) {
        return IntStream.range(0, target.ranks().size())
                .mapToLong(rank -> ExpectedWrites.pieceCount(source, target, rank, 0, TOKEN_COUNT))
                .sum();
    }

    /** @param pageStep 1: pages are consecutive on both sides; 2: no two are adjacent */
    private static long writes(PlanCase planCase, MemoryOrder order, int pageStep) {
        KvGeometry source = planCase.source(order);
        KvGeometry target = planCase.target(order);
        int[] pages = pages(planCase, TOKEN_COUNT, pageStep);
        return new RequestWrites(source, target, LayoutPlanner.plan(source, target)).count(pages, pages, TOKEN_COUNT);
    }

    static int[] pages(PlanCase planCase, int tokenCount, int pageStep) {
        int pageCount = Math.ceilDiv(tokenCount, planCase.model().pageTokens());
        return IntStream.range(0, pageCount).map(page -> page * pageStep).toArray();
    }
}
