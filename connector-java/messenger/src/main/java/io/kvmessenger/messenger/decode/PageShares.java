package io.kvmessenger.messenger.decode;

import io.kvmessenger.kvlayout.ExpectedWrites;
import io.kvmessenger.kvlayout.KvGeometry;
import io.kvmessenger.kvlayout.RankGeometry;
import io.kvmessenger.messenger.wire.Shares;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Which of a fetch's pages each source has, where a prefiller's ranks divide them: what each source owes, and whether
 * all together have each page once. The counts alone would not show that one page came twice and another not at all.
 *
 * <p>Pure, but for the grant that it fills in; owned by the messenger's thread. It ends no source.
 */
record PageShares(KvGeometry geometry) {
    /** Takes a source's message. Returns what is wrong with it as the end of a sentence; empty when it is valid. */
    String take(FetchSource source, Shares message) {
        SourceGrant grant = source.grant;
        KvGeometry peer = source.session.peerCache().geometry();
        List<BitSet> shares = message.getPagesList().stream()
                .map(pages -> BitSet.valueOf(pages.toByteArray()))
                .toList();
        if (grant.knowsOwed()) {
            return "its share of the pages of transfer " + source.fetch.ask.transferId() + " where none is asked for";
        }
        long owed = grant.expectedWeight;
        int at = 0;
        for (RankGeometry rank : peer.ranks()) {
            for (int group : dividedGroups(peer)) {
                int granted = source.fetch.ask.pages().get(group).length;
                if (at == shares.size() || shares.get(at).length() > granted) {
                    return "a share that names others than the " + granted + " pages of transfer "
                            + source.fetch.ask.transferId();
                }
                int missing = granted - shares.get(at++).cardinality();
                owed -= (long) missing * ExpectedWrites.piecesOfPage(peer, rank, geometry, group);
            }
        }
        if (at != shares.size()) {
            return shares.size() + " shares of the pages of transfer " + source.fetch.ask.transferId() + ", expected "
                    + at;
        }
        grant.owes(owed, shares);
        return "";
    }

    /** Why the sources of a fetch have not sent each page once; empty when they have. */
    String gap(Fetch fetch) {
        Map<List<Integer>, Union> unions = new TreeMap<>(PageShares::byPlace);
        for (FetchSource source : fetch.sources) {
            KvGeometry peer = source.session.peerCache().geometry();
            int at = 0;
            for (RankGeometry rank : peer.ranks()) {
                for (int group : dividedGroups(peer)) {
                    BitSet share = at < source.grant.shares().size()
                            ? source.grant.shares().get(at)
                            : new BitSet();
                    at++;
                    if (ExpectedWrites.piecesOfPage(peer, rank, geometry, group) > 0) {
                        unions.computeIfAbsent(List.of(rank.ppRank(), group), place -> new Union())
                                .add(share);
                    }
                }
            }
        }
        for (Map.Entry<List<Integer>, Union> union : unions.entrySet()) {
            int granted = fetch.ask.pages().get(union.getKey().getLast()).length;
            if (union.getValue().twice > 0 || union.getValue().pages.cardinality() < granted) {
                return "of the " + granted + " pages of transfer " + fetch.ask.transferId() + ", the ranks of "
                        + fetch.prefillerNames() + " sent " + union.getValue().twice + " twice and "
                        + (granted - union.getValue().pages.cardinality())
                        + " not at all: they do not divide their pages alike, or computed the prompt more than once;"
                        + " send the request again";
            }
        }
        return "";
    }

    private static int byPlace(List<Integer> a, List<Integer> b) {
        int byStage = Integer.compare(a.getFirst(), b.getFirst());
        return byStage != 0 ? byStage : Integer.compare(a.getLast(), b.getLast());
    }

    private static List<Integer> dividedGroups(KvGeometry peer) {
        List<Integer> divided = new ArrayList<>();
        for (int group = 0; group < peer.groups().size(); group++) {
            if (peer.groups().get(group).isDivided()) {
                divided.add(group);
            }
        }
        return divided;
    }

    /** The pages that several ranks of a stage have of a group. */
    private static final class Union {
        private final BitSet pages = new BitSet();
        private int twice;

        void add(BitSet share) {
            BitSet both = (BitSet) share.clone();
            both.and(pages);
            twice += both.cardinality();
            pages.or(share);
        }
    }
}
