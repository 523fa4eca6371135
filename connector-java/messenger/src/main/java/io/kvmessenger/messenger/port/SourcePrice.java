package io.kvmessenger.messenger.port;

/**
 * What it takes to get tokens from another engine's prefix cache, as this engine has measured it.
 *
 * <p>A value; any thread.
 *
 * @param source address of the other engine's first messenger, {@code host:port}
 * @param deadNs for how long it is not chosen, since it was lost a moment ago; 0 if it was not
 * @param openNs for a session; 0 if there is one
 * @param answerNs for its answer
 * @param queueNs for what is on its way already
 * @param fixedNs for moving any number of tokens
 * @param nsPerToken for each of them beside that
 * @param tokensMin the price is known from here to {@code tokensMax}; otherwise it is a guess by other engines
 * @param knownNs for how long it is
 */
public record SourcePrice(
        String source,
        long deadNs,
        long openNs,
        long answerNs,
        long queueNs,
        long fixedNs,
        double nsPerToken,
        long tokensMin,
        long tokensMax,
        long knownNs) {
    /** How long something that is under way is believed without another report. */
    private static final long QUEUE_BELIEVED_NS = 5_000_000_000L;

    /** What the tokens themselves take; none take none. */
    public double moveNs(long tokens) {
        return tokens <= 0 ? 0 : fixedNs + nsPerToken * tokens;
    }

    /** @param ageNs how long ago the price was reported */
    public long queueNs(long ageNs) {
        return ageNs < QUEUE_BELIEVED_NS ? queueNs : 0;
    }

    /** What that many tokens take in all. */
    public double totalNs(long tokens, long ageNs) {
        return openNs + answerNs + queueNs(ageNs) + moveNs(tokens);
    }

    /** Whether the engine itself has moved about as many tokens lately. */
    public boolean knows(long tokens, long ageNs) {
        return isKnown(ageNs) && tokensMin <= tokens && tokens <= tokensMax;
    }

    /** Whether the engine itself has moved any lately. */
    public boolean isKnown(long ageNs) {
        return ageNs < knownNs;
    }

    public boolean isDead(long ageNs) {
        return ageNs < deadNs;
    }
}
