package io.kvmessenger.messenger.session;

import java.util.HashMap;
import java.util.Map;
import java.util.function.Predicate;

/**
 * Says which of several entries may go first: SIEVE, by Zhang, Yang, Yue, Vigfusson and Rashmi, "SIEVE is Simpler than
 * LRU: an Efficient Turn-Key Eviction Algorithm for Web Caches", NSDI 2024. Not thread-safe.
 *
 * <p>Entries stay in the order in which they came. A hand walks from the oldest to the newest, and begins again: it passes
 * an entry that was used since it came by, and returns the first other one. So an entry that is used once goes soon, and
 * one that is used again stays, for one bit and no move at a use.
 *
 * <p>In the paper the returned entry is evicted. Here it stays until it is removed, as its peer may refuse to go; the hand
 * is past it.
 */
final class Sieve<E> {
    private static final class Place<E> {
        final E entry;
        boolean used;
        Place<E> older;
        Place<E> newer;

        Place(E entry) {
            this.entry = entry;
        }
    }

    private final Map<E, Place<E>> places = new HashMap<>();
    private Place<E> oldest;
    private Place<E> newest;
    /** The next to be looked at; null = the oldest. */
    private Place<E> hand;

    int size() {
        return places.size();
    }

    void add(E entry) {
        Place<E> place = new Place<>(entry);
        if (places.putIfAbsent(entry, place) != null) {
            throw new AssertionError("an entry is added once");
        }
        place.older = newest;
        if (newest == null) {
            oldest = place;
        } else {
            newest.newer = place;
        }
        newest = place;
    }

    /** An entry that is not here is ignored. */
    void use(E entry) {
        Place<E> place = places.get(entry);
        if (place != null) {
            place.used = true;
        }
    }

    /** An entry that is not here is ignored. */
    void remove(E entry) {
        Place<E> place = places.remove(entry);
        if (place == null) {
            return;
        }
        if (hand == place) {
            hand = place.newer;
        }
        if (place.older == null) {
            oldest = place.newer;
        } else {
            place.older.newer = place.newer;
        }
        if (place.newer == null) {
            newest = place.older;
        } else {
            place.newer.older = place.older;
        }
    }

    /** The entry that goes first, of those that may go; null if none may. Takes at most two turns of the hand. */
    E next(Predicate<E> mayGo) {
        boolean anyMay = true;
        for (int turn = 0; turn < 2 && anyMay; turn++) {
            anyMay = false;
            for (int steps = places.size(); steps > 0; steps--) {
                Place<E> place = hand == null ? oldest : hand;
                hand = place.newer;
                if (!mayGo.test(place.entry)) {
                    continue;
                }
                if (!place.used) {
                    return place.entry;
                }
                place.used = false;
                anyMay = true;
            }
        }
        return null;
    }
}
