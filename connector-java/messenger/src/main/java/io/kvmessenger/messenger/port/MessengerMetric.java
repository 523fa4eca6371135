package io.kvmessenger.messenger.port;

import java.util.List;
import java.util.Locale;

/** Every metric of the messenger, with a sentence each. Metrics pages, docs and dashboards are generated from it. */
public enum MessengerMetric {
    FETCHES_STARTED(Kind.COUNTER, "fetches_started", "Fetches that the decoder's engine asked for."),
    FETCHES_ARRIVED(Kind.COUNTER, "fetches_arrived", "Fetches whose pages all arrived."),
    FETCHES_FAILED(Kind.COUNTER, "fetches_failed", "Fetches that ended without their KV.", FetchFailure.values()),
    FETCHES_ABANDONED(Kind.COUNTER, "fetches_abandoned", "Fetches that the engine abandoned before they had ended."),
    FETCHES_REGRANTED(
            Kind.COUNTER, "fetches_regranted", "Grants given again because the prefiller preempted the request."),
    GRANTS_SENT(Kind.COUNTER, "grants_sent", "Grants that the decoder sent to prefillers."),
    GRANTS_RECEIVED(Kind.COUNTER, "grants_received", "Grants that the prefiller received from decoders."),
    GRANTS_DECLINED(Kind.COUNTER, "grants_declined", "Grants that the prefiller answered with cannot-deliver."),
    CANCELS_SENT(Kind.COUNTER, "cancels_sent", "Cancellations that the decoder sent."),
    CANCELS_CONFIRMED(Kind.COUNTER, "cancels_confirmed", "Cancellations that a prefiller confirmed."),
    PREFILLS_STARTED(Kind.COUNTER, "prefills_started", "Prefills whose KV is to be sent."),
    PREFILLS_SENT(Kind.COUNTER, "prefills_sent", "Prefills whose KV has left completely."),
    PREFILLS_EXPIRED(
            Kind.COUNTER,
            "prefills_expired",
            "Prefills whose pages were given up because no grant came within the limit."),
    PREFILLS_UNDELIVERED(
            Kind.COUNTER,
            "prefills_undelivered",
            "Prefills that ended before their KV had left.",
            PrefillFailure.values()),
    LAYERS_SENT(
            Kind.COUNTER,
            "layers_sent",
            "Layer writes that left: one for a layer of a chunk, or of chunks that left together."),
    LAYERS_SENT_EARLY(
            Kind.COUNTER, "layers_sent_early", "Layer writes that left before the forward pass of their chunk ended."),
    PAGES_SENT(Kind.COUNTER, "pages_sent", "Pages (of one layer each) that the prefiller has written."),
    BYTES_SENT(Kind.COUNTER, "sent_bytes", "Bytes of KV that the prefiller has written."),
    STRIDED_PIECES_SENT(
            Kind.COUNTER,
            "strided_pieces_sent",
            "Pieces written token by token, because the other side splits heads differently and the layout is NHD:"
                    + " HND needs fewer writes."),
    PAGES_RECEIVED(Kind.COUNTER, "pages_received", "Pages (of one layer each) of fetches that arrived."),
    BYTES_RECEIVED(Kind.COUNTER, "received_bytes", "Bytes of KV of fetches that arrived."),
    PAGES_COMPARED(
            Kind.COUNTER, "pages_compared", "Pages, or parts of pages, compared by page_checksum after they arrived."),
    CHECKSUMS_DIFFERENT(
            Kind.COUNTER,
            "checksums_different",
            "Fetches failed because pages arrived damaged: check the network and the memory of both hosts."),
    LAST_TOKENS_COMPARED(
            Kind.COUNTER,
            "last_tokens_compared",
            "Requests whose last prompt token was compared, as received and as computed here (last_token_check).",
            ComparisonOutcome.values()),
    FETCHES_REFUTED(
            Kind.COUNTER,
            "fetches_refuted",
            "Fetches refused before they began, because the prefiller computes another KV than this engine: the log"
                    + " names the layer."),
    ASKS_ANSWERED(
            Kind.COUNTER,
            "asks_answered",
            "Questions to other engines for cached prefixes, by what came of them.",
            OfferOutcome.values()),
    OFFERS_MADE(
            Kind.COUNTER,
            "offers_made",
            "Answers to other engines that asked for cached prefixes.",
            OfferOutcome.answers()),
    PULLS_ENDED(
            Kind.COUNTER,
            "pulls_ended",
            "Requests that name an engine to take the beginning of their prompt from, by what came of it.",
            PullOutcome.values()),
    TOKENS_PULLED(
            Kind.COUNTER, "tokens_pulled", "Prompt tokens whose KV was taken from another engine's prefix cache."),
    WEIGHT_UPDATES_ENDED(
            Kind.COUNTER,
            "weight_updates_ended",
            "Updates of weights at this host, by how they ended.",
            UpdateEnd.values()),
    WEIGHTS_LANDED_BYTES(
            Kind.COUNTER, "weights_landed_bytes", "Bytes of weights that have landed whole in this host's memory."),
    WRITES_REFUSED(Kind.COUNTER, "writes_refused", "Writes refused because they were outside their window or region."),
    WRITES_FAILED(Kind.COUNTER, "writes_failed", "Writes that ended without completing."),
    WINDOWS_OVERSHOT(Kind.COUNTER, "windows_overshot", "Fetches failed because more immediates arrived than expected."),
    BACK_PRESSURED(Kind.COUNTER, "back_pressured", "Writes delayed because the queue to their peer was full."),
    LINKS_OPENED(Kind.COUNTER, "links_opened", "Control links that completed their handshake."),
    LINKS_LOST(
            Kind.COUNTER, "links_lost", "Control links that ended after their handshake, but for those of idle peers."),
    LINKS_IDLED(
            Kind.COUNTER,
            "links_idled",
            "Control links of idle peers that were closed because the prefiller has too many; each comes back with a"
                    + " request."),
    LINKS_REFUSED(Kind.COUNTER, "links_refused", "Control links refused in the handshake, by either side."),
    SECRETS_DIFFERENT(
            Kind.COUNTER, "secrets_different", "Control links refused here because the peer did not prove the secret."),
    VERSIONS_DIFFERENT(
            Kind.COUNTER, "versions_different", "Control links refused here because the peer speaks another version."),
    GEOMETRIES_DIFFERENT(
            Kind.COUNTER,
            "geometries_different",
            "Control links refused here because the peer's KV geometry does not match ours."),
    MANIFESTS_DIFFERENT(
            Kind.COUNTER,
            "manifests_different",
            "Control links refused here because the peer's weights are other tensors than ours."),
    HANDSHAKES_DROPPED(
            Kind.COUNTER,
            "handshakes_dropped",
            "Control links closed on arrival or in their handshake because they were too slow, or too many, or this"
                    + " engine sleeps."),
    FRAMES_INVALID(
            Kind.COUNTER,
            "frames_invalid",
            "Invalid control frames, each of which closed its link, and messages on data paths, which are not used."),
    FAULTS_CONTAINED(
            Kind.COUNTER,
            "faults_contained",
            "Bugs of the messenger that ended one fetch, one prefill or one control link and nothing else; the log"
                    + " has each."),
    HEARTBEATS_MISSED(Kind.COUNTER, "heartbeats_missed", "Heartbeat periods in which a connected peer sent nothing."),
    PEERS_SILENT(
            Kind.COUNTER, "peers_silent", "Peers declared lost because they sent nothing for silence_limit_seconds."),
    STALE_IDENTITIES(
            Kind.COUNTER, "stale_identities", "Fetches that named an engine id that is no longer at its address."),
    EVENTS_DROPPED(Kind.COUNTER, "events_dropped", "Log lines and timelines dropped because the engine did not poll."),
    TRANSPORT_BYTES_SENT(
            Kind.COUNTER, Label.TRANSPORT, "transport_sent_bytes", "Payload bytes that transports have sent."),
    TRANSPORT_WRITES_REFUSED(
            Kind.COUNTER, "transport_writes_refused", "Writes that a transport refused: outside a grant or a region."),
    TRANSPORT_BACK_PRESSURED(
            Kind.COUNTER,
            "transport_back_pressured",
            "Requests that a transport did not admit because its queue was full."),
    TRANSPORT_WRITES_SENT(
            Kind.COUNTER,
            Label.TRANSPORT,
            "transport_writes_sent",
            "Writes that transports have sent; pieces that are adjacent on both sides are one."),
    TRANSPORT_WRITES_SAVED(
            Kind.COUNTER,
            Label.TRANSPORT,
            "transport_writes_saved",
            "Writes saved because pieces that are adjacent on both sides were sent as one."),
    TRANSPORT_RUNS_BY_KERNEL(
            Kind.COUNTER,
            "transport_runs_by_kernel",
            "Runs of bytes that a kernel copied from or to a GPU's memory, and not the copy engine."),
    TRANSPORT_WRITES_REPEATED(
            Kind.COUNTER,
            Label.TRANSPORT,
            "transport_writes_repeated",
            "Parts of writes that were sent again because the data path that had them broke."),
    STRAYS(Kind.COUNTER, "strays", "Immediates that arrived for no open window."),
    PATHS_OPENED(Kind.COUNTER, Label.TRANSPORT, "paths_opened", "Data paths to peers that were set up."),
    PATHS_LOST(Kind.COUNTER, Label.TRANSPORT, "paths_lost", "Data paths to peers that broke."),
    PATHS_REJECTED(
            Kind.COUNTER,
            "paths_rejected",
            "Data sockets closed before they became a path: garbage, another version, a wrong key, or too slow."),
    FETCHES_OPEN(Kind.GAUGE, "fetches_open", "Fetches not yet ended."),
    PAGES_OFFERED(Kind.GAUGE, "pages_offered", "Pages of the prefix cache that are kept for other engines."),
    PREFILLS_OPEN(Kind.GAUGE, "prefills_open", "Prefills whose pages are still needed by the messenger."),
    GRANTS_WAITING(Kind.GAUGE, "grants_waiting", "Grants that wait for their prefill to start."),
    WINDOWS_OPEN(Kind.GAUGE, "windows_open", "Imm windows in use."),
    WRITES_IN_FLIGHT(Kind.GAUGE, "writes_in_flight", "Layer writes submitted and not completed."),
    PAGES_QUARANTINED(Kind.GAUGE, "pages_quarantined", "Pages that wait for proof that nothing can write to them."),
    REGIONS_OPEN(Kind.GAUGE, "regions_open", "Memory regions registered for transfer."),
    SESSIONS_OPEN(Kind.GAUGE, "sessions_open", "Peers with a completed handshake."),
    LAST_TOKEN_DIFFERENCE(
            Kind.GAUGE,
            "last_token_difference_millionths",
            "The largest difference between received and own KV of a prompt's last token, in millionths of a layer's"
                    + " largest number: of each connected prefiller's last request, and the largest of these."),
    WEIGHTS_VERSION(
            Kind.GAUGE, "weights_version", "Version of the weights that this host serves; 0 = those it started with."),
    JVM_HEAP_USED_BYTES(Kind.GAUGE, "jvm_heap_used_bytes", "Heap in use by the messenger's JVM, including garbage."),
    JVM_HEAP_MAX_BYTES(Kind.GAUGE, "jvm_heap_max_bytes", "Size to which that heap may grow."),
    JVM_GC_SECONDS(Kind.COUNTER, "jvm_gc_seconds", "Time for which the messenger's JVM was paused to collect garbage."),
    JVM_THREADS(
            Kind.GAUGE, "jvm_threads", "Java threads of the messenger's JVM, including engine threads that called it."),
    PEER_BYTES_SENT(Kind.COUNTER, Label.PEER, "peer_sent_bytes", "Bytes of KV written to a decoder."),
    PEER_LAYERS_SENT(Kind.COUNTER, Label.PEER, "peer_layers_sent", "Layer writes that left for a decoder."),
    PEER_WRITES_FAILED(
            Kind.COUNTER, Label.PEER, "peer_writes_failed", "Writes to a decoder that ended without completing."),
    PEER_FETCHES_ARRIVED(
            Kind.COUNTER,
            Label.PEER,
            "peer_fetches_arrived",
            "Fetches that arrived, counted for each prefiller they came from."),
    PEER_FETCHES_FAILED(
            Kind.COUNTER,
            Label.PEER,
            "peer_fetches_failed",
            "Fetches that ended without their KV, counted for each prefiller they were asked of; without those that"
                    + " the engine abandoned."),
    PEER_QUEUED_BYTES(Kind.GAUGE, Label.PEER, "peer_queued_bytes", "Bytes of writes to a decoder that have not ended."),
    PEER_SEND_RATE(
            Kind.GAUGE,
            Label.PEER,
            "peer_send_rate_bytes",
            "Bytes a second at which writes to a decoder complete while there are any, as last measured; 0 while"
                    + " unknown."),
    PEER_QUEUE_SECONDS(
            Kind.GAUGE,
            Label.PEER,
            "peer_queue_seconds",
            "Time that the bytes queued to a decoder take at that rate; NaN if there are some and the rate is"
                    + " unknown."),
    PEER_LAST_TOKEN_DIFFERENCE(
            Kind.GAUGE,
            Label.PEER,
            "peer_last_token_difference_millionths",
            "The same of a single prefiller's last request."),
    PRICE_SECONDS(
            Kind.GAUGE,
            Label.SOURCE,
            "price_seconds",
            "Time in which 1,000 tokens would come from another engine's prefix cache now; of the source `own`, in which"
                    + " this engine computes them."),
    CONNECT_SECONDS(
            Kind.HISTOGRAM,
            "connect_seconds",
            "From a decoder's first packet to a prefiller to the end of their handshake."),
    GRANT_DELAY_SECONDS(
            Kind.HISTOGRAM,
            "grant_delay_seconds",
            "From the engine's fetch to its first grant: the wait for a connection and for an imm slot."),
    GRANT_QUEUED_SECONDS(
            Kind.HISTOGRAM,
            "grant_queued_seconds",
            "From a grant's arrival at the prefiller to the first chunk of its prompt; nearly 0 if the chunk came"
                    + " first."),
    FIRST_WRITE_SECONDS(
            Kind.HISTOGRAM,
            "first_write_seconds",
            "From the moment at which the prefiller has both grant and prompt to the completion of the first write."),
    READY_POLL_SECONDS(
            Kind.HISTOGRAM,
            "ready_poll_seconds",
            "From the arrival of a fetch's KV to the engine's poll that reports it: the engine's share of the delay."),
    FETCH_SECONDS(Kind.HISTOGRAM, "fetch_seconds", "From the engine's fetch to its last immediate."),
    ASK_SECONDS(
            Kind.HISTOGRAM,
            "ask_seconds",
            "From the question for a cached prefix to the answer of an engine that holds some of it."),
    PULL_SECONDS(Kind.HISTOGRAM, "pull_seconds", "From the moment at which a pull has its pages to its arrival."),
    WEIGHTS_APPLY_SECONDS(
            Kind.HISTOGRAM,
            "weights_apply_seconds",
            "Time in which an engine loads weights that have landed, and answers nothing."),
    PREFILL_TAIL_SECONDS(
            Kind.HISTOGRAM,
            "prefill_tail_seconds",
            "From the end of the last forward pass to the last write's completion.");

    /** The Prometheus type of a metric. */
    public enum Kind {
        COUNTER,
        GAUGE,
        HISTOGRAM
    }

    /** The label that divides a metric into several series. */
    public enum Label {
        NONE,
        REASON,
        TRANSPORT,
        /** The peer's engine id. */
        PEER,
        /** The address of an engine that is pulled from. */
        SOURCE;

        /** The label's name on the metrics page. */
        public String labelName() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    private final Kind kind;
    private final Label label;
    private final String suffix;
    private final String sentence;

    @SuppressWarnings("ImmutableEnumChecker") // an unmodifiable list of constants
    private final List<CountedReason> reasons;

    MessengerMetric(Kind kind, String suffix, String sentence) {
        this(kind, Label.NONE, suffix, sentence);
    }

    MessengerMetric(Kind kind, String suffix, String sentence, CountedReason[] reasons) {
        this(kind, Label.REASON, suffix, sentence, reasons);
    }

    MessengerMetric(Kind kind, Label label, String suffix, String sentence, CountedReason... reasons) {
        this.kind = kind;
        this.label = label;
        this.suffix = suffix;
        this.sentence = sentence;
        this.reasons = List.of(reasons);
    }

    public Kind kind() {
        return kind;
    }

    /** Prometheus name without the suffix {@code _total} of counters. */
    public String metricName() {
        return "kv_messenger_" + suffix;
    }

    public String sentence() {
        return sentence;
    }

    public Label label() {
        return label;
    }

    /** The values of the label {@code reason}; empty for a metric without that label. */
    public List<CountedReason> reasons() {
        return reasons;
    }
}
