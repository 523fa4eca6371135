package io.kvmessenger.messenger.decode;

import io.kvmessenger.messenger.session.ProtocolState;

/** Shows the states of sources to tests of other packages. */
public final class FetchSources {
    private FetchSources() {}

    public static ProtocolState<?>[] states() {
        return FetchSource.State.values();
    }
}
