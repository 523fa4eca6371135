package io.kvmessenger.messenger.decode;

import io.kvmessenger.kvlayout.Compatibility;
import io.kvmessenger.kvlayout.ExpectedWrites;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.KvGroup;
import io.kvmessenger.kvlayout.Mismatch;
import io.kvmessenger.kvlayout.SourceDraw;
import io.kvmessenger.messenger.kv.KvFrameRules;
import io.kvmessenger.messenger.pages.PageLists;
import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.specdecode.ContextSlots;
import java.util.List;
import java.util.Optional;

/**
 * What the messengers of a prefiller's engine send to a decoder, individually and together. Pure; safe from any thread.
 *
 * @param geometry the decoder's
 */
public record SourceCoverage(KvGeometry geometry) {
    /**
     * Why these sources do not send every piece exactly once; empty when they do. Without this check a piece that no
     * source sends would go unnoticed.
     */
    public String gap(List<KvGeometry> sources, EngineCommand.Fetch ask, String sourceNames) {
        Optional<String> mismatch =
                Compatibility.checkCoverage(sources, geometry).map(Mismatch::sentence);
        long total = pieceCount(sources.getFirst(), ask);
        long sum = 0;
        for (KvGeometry source : sources) {
            sum += pieceCountFrom(source, ask);
        }
        if (mismatch.isEmpty() && sum == total && sameSharding(sources)) {
            return "";
        }
        return "the prefillers named for transfer " + ask.transferId() + " (" + sourceNames + ") send " + sum
                + " pieces of " + total + ": name every messenger of one prefiller's engine, and no other"
                + mismatch.map(sentence -> "; " + sentence).orElse("");
    }

    /** Why the engine's page lists or names are invalid for a fetch; empty when they are valid. */
    String unfit(EngineCommand.Fetch ask) {
        String broken = KvFrameRules.broken(ask);
        if (!broken.isEmpty()) {
            return "the engine asked for a transfer with " + broken;
        }
        String misfit = PageLists.misfit(
                geometry, ask.pages(), ask.firstToken(), ask.promptTokens(), ask.contextSlot() != ContextSlots.NO_SLOT);
        if (!misfit.isEmpty()) {
            return "the engine gave " + misfit;
        }
        long different = ask.prefillers().stream()
                .map(address -> address.host() + ":" + address.port())
                .distinct()
                .count();
        return different == 0 || different < ask.prefillers().size()
                ? "the fetch names prefillers " + ask.prefillers()
                        + ", expected each messenger of the prefiller's engine once"
                : "";
    }

    private static boolean sameSharding(List<KvGeometry> sources) {
        KvGeometry first = sources.getFirst();
        return sources.stream()
                .allMatch(other -> other.sharding().equals(first.sharding())
                        && pageTokens(other).equals(pageTokens(first)));
    }

    private static List<Integer> pageTokens(KvGeometry geometry) {
        return geometry.groups().stream().map(KvGroup::pageTokens).toList();
    }

    /** Number of pieces that all ranks together receive from all sources. */
    private long pieceCount(KvGeometry source, EngineCommand.Fetch ask) {
        long count = 0;
        for (int rankIndex = 0; rankIndex < geometry.ranks().size(); rankIndex++) {
            count += ExpectedWrites.pieceCount(source, geometry, rankIndex, ask.firstToken(), ask.promptTokens());
        }
        return count;
    }

    /** Number of pieces that all ranks together receive from one source. */
    long pieceCountFrom(KvGeometry source, EngineCommand.Fetch ask) {
        SourceDraw draw = SourceDraw.of(ask.transferId(), source, geometry);
        long count = 0;
        for (int rankIndex = 0; rankIndex < geometry.ranks().size(); rankIndex++) {
            count += ExpectedWrites.pieceCountFrom(
                    source, geometry, rankIndex, ask.firstToken(), ask.promptTokens(), draw);
        }
        return count;
    }
}
