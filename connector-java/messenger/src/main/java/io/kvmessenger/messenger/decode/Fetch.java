package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.port.EngineCommand;
import io.kvmessenger.messenger.port.FetchFailure;
import io.kvmessenger.messenger.port.TransferKey;
import io.kvmessenger.specdecode.ContextChoice;
import io.kvmessenger.transfer.WindowArea;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;

/**
 * One request's KV on its way to this decoder, from one or several messengers of a prefiller's engine. State only,
 * owned by the messenger's thread; {@link Decoder} drives it.
 */
final class Fetch {
    final EngineCommand.Fetch ask;
    final TransferKey transfer;
    final long askedNs;
    final long deadlineNs;
    final List<FetchSource> sources = new ArrayList<>();
    /** The kinds of context rows that each source sends. */
    ContextChoice context = ContextChoice.NONE;
    /** The memory that the prefillers may write to, on every rank. */
    WindowArea area;
    /** The sources together send every piece; known once all their geometries are. */
    boolean covered;

    long grantedNs;
    /** Why the fetch will fail; null while it may still arrive. */
    FetchFailure failure;
    /** The reason of the failure as a sentence, for the engine. */
    String failureSentence = "";
    /** The engine has been notified that the pages of this fetch wait for a proof. */
    boolean quarantineReported;
    /** The engine has its end event. Check it in loops over snapshots. */
    boolean ended;

    Fetch(EngineCommand.Fetch ask, long askedNs, long deadlineNs) {
        this.ask = ask;
        this.transfer = ask.transfer();
        this.askedNs = askedNs;
        this.deadlineNs = deadlineNs;
    }

    boolean failing() {
        return failure != null;
    }

    boolean holdsWindow() {
        for (FetchSource source : sources) {
            if (source.holdsWindow()) {
                return true;
            }
        }
        return false;
    }

    /** Some source can no longer receive a confirmation from its prefiller, while writes may still land. */
    boolean awaitsProof() {
        return sources.stream().anyMatch(source -> source.state() == FetchSource.State.AWAITING_PROOF);
    }

    /** Nothing can land in its pages any more. */
    boolean over() {
        for (FetchSource source : sources) {
            if (!source.over()) {
                return false;
            }
        }
        return true;
    }

    boolean filled() {
        for (FetchSource source : sources) {
            if (source.state() != FetchSource.State.FILLED) {
                return false;
            }
        }
        return true;
    }

    String prefillerNames() {
        return sources.stream().map(source -> source.session.peerName()).collect(Collectors.joining(", "));
    }
}
