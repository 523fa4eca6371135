package io.kvmessenger.testkit.sim;

import java.util.List;

/** Bugs of weights, each a change of the production source. */
enum WeightsMutant {
    /** The engine may load what has not landed. */
    APPLIED_BEFORE_LANDED("WeightReceiver", "decided(updateId, \"it has not landed\")", "decided(updateId, \"\")"),
    /** The engine may load what it has loaded before. */
    APPLIED_AGAIN(
            "WeightReceiver",
            "decided(updateId, \"version \" + update.version() + \" has been loaded\")",
            "decided(updateId, \"\")"),
    /** The engine may load another update than the one that it asks for. */
    ANOTHER_APPLIED("WeightReceiver", "if (update.id() == updateId) {", "if (update.id() != 0) {"),
    /** The landing is free when the session of a sender has ended, which may still write. */
    REUSED_BEFORE_PROOF("WeightReceiver", "        events.ended(session.ticket, reason);", """
                    if (landing.state() == LandingState.QUARANTINED && landing.update().sender() == session) {
                        landing.release();
                    }
                    events.ended(session.ticket, reason);"""),
    /** The landing is not free when the admission of a lost sender is closed. */
    NEVER_RELEASED(
            "WeightReceiver",
            "            landing.release();\n        }\n        if (session.state()",
            "        }\n        if (session.state()"),
    /** An update that waits for the landing does not get it. */
    WAITING_FORGOTTEN(
            "WeightReceiver", "                groundUnlessTaken(update);\n            } catch", "            } catch"),
    /** An older version is taken. */
    OLDER_VERSION_ACCEPTED("WeightReceiver", "announce.getVersion() <= servedVersion", "announce.getVersion() < 1"),
    /** A version that is served is taken again. */
    SAME_VERSION_ACCEPTED(
            "WeightReceiver", "announce.getVersion() <= servedVersion", "announce.getVersion() < servedVersion"),
    /** What was loaded is forgotten. */
    SERVED_VERSION_FORGOTTEN("WeightReceiver", "servedVersion = update.version();", ""),
    /** The window is full before the last write has landed. */
    COUNT_OFF_BY_ONE("Landing", "writeCount(), windowCount + 1);", "writeCount() - 1, windowCount + 1);"),
    /** A sender that is gone when one write has not landed is taken for one whose update has landed whole. */
    COUNT_OFF_BY_ONE_AT_THE_END(
            "Landing",
            "window.arrivedWeight() == window.expectedWeight()",
            "window.arrivedWeight() >= window.expectedWeight() - 1"),
    /** A sender announces another number of writes than the landing has, and is given it. */
    WRITE_COUNT_NOT_COMPARED(
            "WeightReceiver",
            "return announce.getWriteCount() == landing.writeCount()",
            "return announce.getWriteCount() > 0"),
    /** Whatever has landed is taken for what was announced. */
    DIGEST_NOT_COMPARED(
            "Landing", "boolean same = digest.value().equals(update.contentDigest());", "boolean same = true;"),
    /** Weights are named by their number, which those of another sender may have too. */
    NAMED_BY_NUMBER(
            "WeightReceiver",
            "update.version(), update.contentDigest());",
            "update.version(), ByteString.copyFromUtf8(String.valueOf(update.version())));"),
    /** Weights are named by their update, so that the same ones that are sent once more have another name. */
    NAMED_BY_UPDATE(
            "WeightReceiver",
            "update.version(), update.contentDigest());",
            "update.version(), ByteString.copyFromUtf8(String.valueOf(update.id())));"),
    /** The digest leaves out the last piece. */
    DIGEST_WITHOUT_TAIL(
            "ContentDigest", "return atBytes == bytes.byteSize();", "return atBytes + pieceBytes >= bytes.byteSize();"),
    /** What has landed is announced as landed before it is compared. */
    LANDED_BEFORE_COMPARED(
            "WeightReceiver",
            "        landing.onFilled();",
            "        send(landing.update().sender(), WeightsFrame.newBuilder().setLanded(Landed.newBuilder().setUpdateId(landing.update().id())));\n        landing.onFilled();"),
    /** The landing is given away while the engine loads from it. */
    GIVEN_AWAY_WHILE_LOADED(
            new Change("LandingState", "EnumSet.of(HELD, EMPTY)", "EnumSet.of(HELD, EMPTY, GROUND)"),
            new Change(
                    "WeightReceiver",
                    "case GROUND, COMPARING, APPLYING, QUARANTINED ->",
                    "case GROUND, COMPARING, QUARANTINED ->"),
            new Change("WeightReceiver", "case EMPTY, HELD -> false;", "case EMPTY, HELD, APPLYING -> false;")),
    /** The landing is given to a second sender while the first one writes. */
    GROUND_TWICE(
            new Change(
                    "LandingState", "EnumSet.of(COMPARING, QUARANTINED)", "EnumSet.of(COMPARING, QUARANTINED, GROUND)"),
            new Change(
                    "WeightReceiver",
                    "case GROUND, COMPARING, APPLYING, QUARANTINED ->",
                    "case COMPARING, APPLYING, QUARANTINED ->"),
            new Change("WeightReceiver", "case EMPTY, HELD -> false;", "case EMPTY, HELD, GROUND -> false;")),
    /** The window of the update before is named to the next one. */
    WINDOW_REUSED(
            new Change(
                    "Landing",
                    "    private ImmWindow window;",
                    "    private ImmWindow window;\n    private int firstImm;"),
            new Change(
                    "Landing",
                    "        return opened.imm();",
                    "        firstImm = windowCount == 1 ? opened.imm() : firstImm;\n        return firstImm;")),
    /** A host does not say why it refuses. */
    REFUSAL_LOST("WeightReceiver", "ports.sessions().send(session, WeightsFrames.refused(updateId, sentence));", ""),
    /** A version that was replaced before it was loaded is not counted as ended. */
    REPLACED_UNCOUNTED("WeightReceiver", "if (unloaded) {", "if (unloaded && update == null) {"),
    /** A version that has landed is replaced by that of another sender, while its own is there. */
    LANDED_TAKEN_AWAY(
            "WeightReceiver", "yield sender != by && sender.state() != Session.State.ENDED;", "yield sender == null;"),
    /** A version that has landed keeps the landing when its sender is gone. */
    LANDED_KEPT_FOR_THE_LOST(
            "WeightReceiver", "yield sender != by && sender.state() != Session.State.ENDED;", "yield sender != by;"),
    /** What a rank could not map, and its sender heard refused, may be loaded later. */
    REFUSED_AND_KEPT(
            new Change("LandingState", "EnumSet.of(HELD, EMPTY)", "EnumSet.of(HELD, LANDED)"),
            new Change(
                    "Landing",
                    "        become(LandingState.EMPTY);\n        update = null;\n    }\n\n    /** The sender is gone",
                    "        become(LandingState.LANDED);\n    }\n\n    /** The sender is gone")),
    /** A sender that ends says of what has landed that it is refused. */
    LANDED_REFUSED_AT_END(
            "WeightSender",
            "if (delivery != null && delivery.state().writes()) {",
            "if (delivery != null && !delivery.state().last()) {"),
    /** A sender keeps its permissions of earlier updates. */
    PERMISSION_KEPT("WeightSender", "ports.transfer().disallow(session.peer, delivery.window);", ""),
    /** A permission is asked for at a host whose data paths have ended. */
    GROUND_WITHOUT_PATHS(
            "WeightSender", "if (session.peer == null) {\n            return;", "if (false) {\n            return;"),
    /** The landing is given to a sender whose data paths have ended. */
    GROUNDED_WITHOUT_PATHS(
            "WeightReceiver",
            "if (!byAdmission.containsKey(session.admission.id())) {",
            "if (session.admission == null) {"),
    /** A session that ends while the digest is computed is lost, and then refused. */
    LOST_AND_REFUSED("WeightSender", "outgoing.tickets().remove(session.ticket);", ""),
    /** A session that ends while writes are in flight is lost, and its update refused later. */
    LOST_WHILE_READ("WeightSender", "delivery.report(lost);", "lost.run();"),
    /** A sender writes each part to the begin of the landing. */
    OFFSET_IGNORED("LandingParts", "return write * writeBytes;", "return 0;"),
    /** A sender reports what a host says while its memory is read. */
    REPORTED_WHILE_READ("Delivery", "report != null && inFlightCount == 0", "report != null"),
    /** Weights of another model are taken. */
    MANIFEST_NOT_COMPARED("WeightsSubject", "return peers.equals(manifestDigest)", "return !peers.isEmpty()"),
    /** A server that takes nothing is written to. */
    REFUSAL_IGNORED(
            "WeightSender", "if (!target.getRefusal().isEmpty()) {", "if (target.getRefusal().length() > 1_000) {");

    /** A text that stands once in a file, and what stands there instead. */
    record Change(String file, String from, String to) {
        String in(String source) {
            int at = source.indexOf(from);
            if (at < 0 || source.indexOf(from, at + 1) >= 0) {
                throw new AssertionError(file + " does not have once: " + from);
            }
            return source.replace(from, to);
        }
    }

    @SuppressWarnings("ImmutableEnumChecker") // List.of does not change
    private final List<Change> changes;

    WeightsMutant(String file, String from, String to) {
        this(new Change(file, from, to));
    }

    WeightsMutant(Change... changes) {
        this.changes = List.of(changes);
    }

    List<Change> changes() {
        return changes;
    }
}
