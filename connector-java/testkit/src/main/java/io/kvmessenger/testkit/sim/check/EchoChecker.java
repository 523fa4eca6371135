package io.kvmessenger.testkit.sim.check;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/**
 * Checks a subject without KV: each ask ends once, with the bytes or with a reason; nothing lands where no ask is open;
 * nothing is held at rest.
 */
public final class EchoChecker implements WorldListener {
    private final boolean portsThrow;
    /** Ids of the open asks of each process. */
    private final Map<String, Set<Long>> open = new HashMap<>();

    private Violation first;

    /** @param portsThrow whether calls of ports fail */
    public EchoChecker(boolean portsThrow) {
        this.portsThrow = portsThrow;
    }

    public void asked(String process, long id) {
        throwFirst();
        open.computeIfAbsent(process, p -> new HashSet<>()).add(id);
    }

    /** @param wrongAt first byte that is not the listener's; -1 if all are, or it is not known what they should be */
    public void arrived(String process, long id, long wrongAt) {
        ended(process, id);
        if (wrongAt >= 0) {
            throw found(process + " was given ask " + id + " with a wrong byte " + wrongAt);
        }
    }

    public void failed(String process, long id, String reason) {
        ended(process, id);
        if (reason.isBlank()) {
            throw found("ask " + id + " of " + process + " failed without a reason");
        }
    }

    private void ended(String process, long id) {
        throwFirst();
        if (!open.getOrDefault(process, Set.of()).remove(id)) {
            throw found("ask " + id + " of " + process + " ended and was not open");
        }
    }

    public int openCount(String process) {
        return open.getOrDefault(process, Set.of()).size();
    }

    @Override
    public void landed(PageWrite write, int fromByte, int toByte) {
        throwFirst();
        if (openCount(write.target()) == 0) {
            throw found(write.source() + " wrote into " + write.target() + ", which has no open ask");
        }
    }

    @Override
    public void faultContained(String process) {
        if (!portsThrow) {
            throw found(process + " met an exception");
        }
    }

    @Override
    public void processDied(String process) {
        open.remove(process);
    }

    /** @param held what the subject holds for asks */
    public void atRest(String process, Map<String, Integer> held, FabricHoldings fabric) {
        throwFirst();
        if (held.values().stream().anyMatch(count -> count > 0)) {
            throw found(process + " is at rest and holds " + held);
        }
        if (fabric.windowsOpen() + fabric.allowances() + fabric.writesInFlight() > 0) {
            throw found(process + " is at rest and its transfer engine holds " + fabric);
        }
        if (fabric.liveAdmissions() + fabric.livePeers() > fabric.sessions()) {
            throw found(process + " is at rest with more data paths than links: " + fabric);
        }
    }

    /** The code under test may catch a violation, and end a link for it. */
    private void throwFirst() {
        if (first != null) {
            throw first;
        }
    }

    private Violation found(String sentence) {
        if (first == null) {
            first = new Violation("Echo", sentence);
        }
        return first;
    }
}
