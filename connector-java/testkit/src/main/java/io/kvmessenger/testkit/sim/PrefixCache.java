package io.kvmessenger.testkit.sim;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The pages that hold common beginnings of prompts. Like vLLM's, it adds a page when it is scheduled, and so before it
 * is written; a page is shared as long as some prompt holds it.
 */
final class PrefixCache {
    /** A page with a part of the beginning that a family of prompts shares. */
    static final class Entry {
        private final int page;
        private final String key;
        private int holders = 1;
        /** The pass that computes it. */
        private final ForwardPass pass;
        /** That pass is over. */
        private boolean written;

        private Entry(String key, int page, ForwardPass pass) {
            this.key = key;
            this.page = page;
            this.pass = pass;
        }

        int page() {
            return page;
        }

        boolean held() {
            return holders > 0;
        }

        boolean written() {
            return written;
        }
    }

    private final int pageTokens;
    private final Map<String, Entry> byKey = new HashMap<>();

    PrefixCache(int pageTokens) {
        this.pageTokens = pageTokens;
    }

    private String key(String transferId, int logicalPage) {
        return PromptText.family(transferId) + " " + logicalPage;
    }

    private boolean shareable(String transferId, int tokenCount, int logicalPage) {
        return (logicalPage + 1) * pageTokens <= Math.min(tokenCount, PromptText.sharedTokens(transferId));
    }

    /** The cached beginning of the prompt, which then holds these pages; the last token has to be computed. */
    List<Entry> hit(String transferId, int tokenCount) {
        List<Entry> found = new ArrayList<>();
        for (int k = 0; shareable(transferId, tokenCount - 1, k); k++) {
            Entry entry = byKey.get(key(transferId, k));
            if (entry == null) {
                break;
            }
            entry.holders++;
            found.add(entry);
        }
        return found;
    }

    /** Adds a full page that is scheduled to be computed; null if it cannot be shared. */
    Entry commit(String transferId, int tokenCount, int logicalPage, int page, ForwardPass pass) {
        String key = key(transferId, logicalPage);
        if (!shareable(transferId, tokenCount, logicalPage) || byKey.containsKey(key)) {
            return null;
        }
        Entry entry = new Entry(key, page, pass);
        byKey.put(key, entry);
        return entry;
    }

    /** A prompt does not hold the page any more. Returns whether no prompt does. */
    boolean giveUp(Entry entry) {
        entry.holders--;
        if (entry.holders == 0) {
            byKey.remove(entry.key, entry);
        }
        return entry.holders == 0;
    }

    /** The pass is over: the pages scheduled for it are written. */
    void passEnded(ForwardPass pass) {
        byKey.values().stream().filter(entry -> entry.pass == pass).forEach(entry -> entry.written = true);
    }

    /** The pass has failed: pages that it did not write are removed. */
    void passFailed(ForwardPass pass) {
        byKey.values().removeIf(entry -> entry.pass == pass);
    }
}
