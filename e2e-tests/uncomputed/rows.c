/*
 * What an attention layer does to KV where kernels compute nothing: at the layer's place in the stream or graph, each request of the
 * step has the rows before its part compared with what they have to be, and those of its part written.
 *
 * A row belongs to a token at a position in a layer, and its bytes follow from the three alone. So a page that came
 * from another engine is judged where attention would read it. A layer's state belongs to all tokens so far, in their order: it is
 * compared with those before the request's part, and made that of the part's end.
 *
 * A layer of a pass that computes a part of a prompt takes COMPUTED_US, as kernels would: so its pages can leave before the pass ends.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
#define COMPUTED_US 5000

int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data);
int cuStreamIsCapturing(void *stream, int *status);
void *standInBytes(uint64_t address, size_t length_bytes);

/* A request's tokens from the first, and which of them are of this step: from `begin` to `end`. Its rows begin at `first`. */
struct Request {
    int64_t begin, end, first;
    const int32_t *tokens;
};

/* Slots are those of all requests, in one KV cache group behind the other. */
struct Step {
    int64_t count, total;
    const int64_t *slots;
    struct Request requests[];
};

/*
 * Strides in bytes. The values lie behind the keys, at `value_offset`, or there are none (`parts` is 1). A token reads the rows of at
 * most `window_tokens` up to its own, or those of its chunk of `chunk_tokens`; 0: all. `first_head` is the rank's among all heads.
 * Where `block_tokens` is 0 there is a state of `head_bytes` in a block instead, and `parts` says which of the layer's it is.
 */
struct Layer {
    uint64_t keys;
    int64_t value_offset, block_stride, token_stride, head_stride, head_bytes, head_count, block_tokens;
    int64_t number, group, parts, window_tokens, chunk_tokens, first_head;
    int64_t once;
};

static struct Step *current;
static int64_t rows_read, rows_written, rows_wrong, states_read, states_written;
static char first_wrong[200];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Mixes as splitmix64 does (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014). */
static uint64_t mixed(uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static uint64_t content(const struct Layer *layer, int64_t position, int32_t token, int64_t head, int part) {
    uint64_t row = mixed(((uint64_t)position << 32) ^ (uint32_t)token);
    return mixed(row ^ ((uint64_t)layer->number << 40) ^ ((uint64_t)head << 8) ^ (uint64_t)part);
}

/* Whether all bytes of the row are right; with `writes` they are made so. */
static int row(const struct Layer *layer, int64_t slot, int64_t position, int32_t token, int writes) {
    uint64_t at = layer->keys + (slot / layer->block_tokens) * layer->block_stride + (slot % layer->block_tokens) * layer->token_stride;
    for (int64_t head = 0; head < layer->head_count; head++) {
        for (int part = 0; part < layer->parts; part++) {
            uint64_t wanted = content(layer, position, token, layer->first_head + head, part);
            uint64_t *bytes = standInBytes(at + head * layer->head_stride + part * layer->value_offset, layer->head_bytes);
            if (bytes == NULL) {
                return 0; /* no memory is mapped there */
            }
            for (int64_t i = 0; i < layer->head_bytes / 8; i++) {
                if (writes) {
                    bytes[i] = wanted + i;
                } else if (bytes[i] != wanted + i) {
                    return 0;
                }
            }
        }
    }
    return 1;
}

static void note_wrong(const struct Layer *layer, const struct Request *request, int64_t position, int64_t slot) {
    if (rows_wrong++ == 0) {
        snprintf(first_wrong, sizeof first_wrong, "layer %ld at %lx, token %d at position %ld of %ld, slot %ld", (long)layer->number,
                 (long)layer->keys, request->tokens[position], (long)position, (long)request->end, (long)slot);
    }
}

/* The first row that the step's first token reads. */
static int64_t first_read(const struct Layer *layer, const struct Request *request) {
    if (layer->chunk_tokens > 0) {
        return request->begin / layer->chunk_tokens * layer->chunk_tokens;
    }
    int64_t seen = request->begin - layer->window_tokens + 1;
    return layer->window_tokens == 0 || seen < 0 ? 0 : seen;
}

/* What follows from the first `count` tokens in their order. */
static uint64_t state_after(const struct Layer *layer, const struct Request *request, int64_t count) {
    uint64_t state = mixed(((uint64_t)layer->number << 40) ^ ((uint64_t)layer->first_head << 8) ^ (uint64_t)layer->parts);
    for (int64_t i = 0; i < count; i++) {
        state = mixed(state ^ (uint32_t)request->tokens[i]);
    }
    return state;
}

static void carry_state(const struct Layer *layer, const struct Request *request, int64_t block) {
    uint64_t *bytes = standInBytes(layer->keys + block * layer->block_stride, layer->head_bytes);
    uint64_t before = state_after(layer, request, request->begin), after = state_after(layer, request, request->end);
    int wrong = bytes == NULL;
    for (int64_t i = 0; !wrong && i < layer->head_bytes / 8; i++) {
        wrong = request->begin > 0 && bytes[i] != before + i;
        bytes[i] = after + i;
    }
    if (wrong) {
        note_wrong(layer, request, request->begin, block);
    }
    states_read += request->begin > 0;
    states_written += 1;
}

static void attend(void *given) {
    struct Layer *layer = given;
    int of_prompt = 0;
    pthread_mutex_lock(&lock);
    for (int64_t i = 0; current != NULL && i < current->count; i++) {
        const struct Request *request = &current->requests[i];
        of_prompt |= request->end - request->begin > 1;
        const int64_t *slots = current->slots + layer->group * current->total + request->first;
        if (layer->block_tokens == 0) {
            carry_state(layer, request, slots[0]);
            continue;
        }
        for (int64_t position = first_read(layer, request); position < request->end; position++) {
            int writes = position >= request->begin;
            if (!row(layer, slots[position], position, request->tokens[position], writes)) {
                note_wrong(layer, request, position, slots[position]);
            }
            *(writes ? &rows_written : &rows_read) += 1;
        }
    }
    pthread_mutex_unlock(&lock);
    if (layer->once) {
        free(layer);
    }
    if (of_prompt) {
        usleep(COMPUTED_US);
    }
}

static void begin(void *given) {
    pthread_mutex_lock(&lock);
    free(current);
    current = given;
    pthread_mutex_unlock(&lock);
}

/* Of `count` requests: begins and ends, and for all of a request's tokens up to its end the tokens, and their slots by group. */
EXPORTED int rowsBeginStep(void *stream, int64_t groups, int64_t count, const int64_t *begins, const int64_t *ends,
                           const int64_t *slots, const int32_t *tokens) {
    size_t total = 0;
    for (int64_t i = 0; i < count; i++) {
        total += ends[i];
    }
    size_t slots_bytes = groups * total * sizeof *slots;
    struct Step *step = malloc(sizeof *step + count * sizeof *step->requests + slots_bytes + total * sizeof *tokens);
    int64_t *kept_slots = (int64_t *)&step->requests[count];
    int32_t *kept_tokens = (int32_t *)(kept_slots + groups * total);
    memcpy(kept_slots, slots, slots_bytes);
    memcpy(kept_tokens, tokens, total * sizeof *tokens);
    step->count = count, step->total = total, step->slots = kept_slots;
    for (int64_t i = 0, at = 0; i < count; at += ends[i++]) {
        step->requests[i] = (struct Request){begins[i], ends[i], at, kept_tokens + at};
    }
    return cuLaunchHostFunc(stream, begin, step);
}

/* In a graph the layer is kept as long as the process lives. */
EXPORTED int rowsLayer(void *stream, const struct Layer *given) {
    int capturing = 0;
    int asked = cuStreamIsCapturing(stream, &capturing);
    struct Layer *layer = malloc(sizeof *layer);
    *layer = *given;
    layer->once = !capturing;
    return asked != 0 ? asked : cuLaunchHostFunc(stream, attend, layer);
}

/* Those read, written and wrong (states too), and the states read and written. */
EXPORTED void rowsFigures(int64_t figures[5], char *first, size_t length) {
    pthread_mutex_lock(&lock);
    int64_t now[] = {rows_read, rows_written, rows_wrong, states_read, states_written};
    memcpy(figures, now, sizeof now);
    snprintf(first, length, "%s", first_wrong);
    pthread_mutex_unlock(&lock);
}
