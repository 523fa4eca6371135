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
 * One request's KV on its way to this decoder, from one prefiller's messenger or from several. State only, owned by the
 * messenger's thread; {@link Decoder} drives it.
 */
final class Fetch {
    final EngineCommand.Fetch ask;
    final TransferKey transfer;
    final long askedNs;
    final long deadlineNs;
    final List<FetchSource> sources = new ArrayList<>();
    /** Which kinds of context rows each of them sends. */
    ContextChoice context = ContextChoice.NONE;
    /** Where the prefillers may write, on every rank. */
    WindowArea area;
    /** The sources together send everything: known when all their geometries are. */
    boolean covered;

    long grantedNs;
    /** Why it will fail; null while it may still arrive. */
    FetchFailure failure;
    /** The same for the engine. */
    String failureSentence = "";
    /** The engine has been told that its pages have to wait for a proof. */
    boolean quarantineReported;
    /** The engine has been told; a loop over all fetches may still come by. */
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

    /** The word of a prefiller cannot come any more, and its writes still may. */
    boolean awaitsProof() {
        return sources.stream().anyMatch(source -> source.state == FetchSource.State.AWAITING_PROOF);
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
            if (source.state != FetchSource.State.FILLED) {
                return false;
            }
        }
        return true;
    }

    String prefillerNames() {
        return sources.stream().map(source -> source.session.peerName()).collect(Collectors.joining(", "));
    }
}
