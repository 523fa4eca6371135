package io.kvmessenger.messenger.session;

import java.util.LinkedHashMap;
import java.util.Map;

/** A map that evicts its oldest entry beyond a limit. Not thread-safe. */
public final class BoundedMap<K, V> extends LinkedHashMap<K, V> {
    private static final long serialVersionUID = 1L;

    private final int entriesMax;

    public BoundedMap(int entriesMax) {
        this.entriesMax = entriesMax;
    }

    @Override
    protected boolean removeEldestEntry(Map.Entry<K, V> eldest) {
        return size() > entriesMax;
    }
}
