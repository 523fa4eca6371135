/*
 * What the yardsticks share: the machine's limits on kvperf's work, in plain C.
 *
 * A yardstick is two processes. The first takes "round\n" from its standard input, moves the round's pages, and answers
 * with one line: duration in ns, CPU time of both processes in ns, CPU time of the whole machine in ns, bytes found
 * wrong. It ends with its input.
 */
#ifndef KVPERF_YARDSTICK_H
#define KVPERF_YARDSTICK_H

#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct work {
    size_t page_bytes;
    size_t page_count;
    size_t pool_pages;
    uint64_t seed;
    uint32_t *source_pages;
    uint32_t *target_pages;
    uint64_t round;
};

static inline void fail(const char *what) {
    fprintf(stderr, "yardstick: %s: %s\n", what, strerror(errno));
    exit(1);
}

static inline uint64_t clock_ns(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A random choice of page_count different pages: the first of a shuffled pool. Continues from the last shuffle. */
static inline void shuffle(uint32_t *pages, const struct work *work, uint64_t *state) {
    for (size_t i = 0; i < work->page_count; i++) {
        size_t j = i + next_random(state) % (work->pool_pages - i);
        uint32_t page = pages[i];
        pages[i] = pages[j];
        pages[j] = page;
    }
}

static inline uint32_t *all_pages(size_t pool_pages) {
    uint32_t *pages = malloc(pool_pages * sizeof *pages);
    if (!pages) fail("malloc");
    for (size_t i = 0; i < pool_pages; i++) pages[i] = (uint32_t)i;
    return pages;
}

static inline struct work parse_work(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s PAGE_BYTES PAGE_COUNT POOL_BYTES SEED\n", argv[0]);
        exit(2);
    }
    struct work work = {.page_bytes = strtoull(argv[1], NULL, 10), .page_count = strtoull(argv[2], NULL, 10)};
    work.pool_pages = strtoull(argv[3], NULL, 10) / work.page_bytes;
    work.seed = strtoull(argv[4], NULL, 10);
    work.source_pages = all_pages(work.pool_pages);
    work.target_pages = all_pages(work.pool_pages);
    return work;
}

/* Both processes draw the same pages for a round, each for itself. */
static inline void draw_pages(struct work *work) {
    uint64_t state = work->seed + ++work->round;
    shuffle(work->source_pages, work, &state);
    shuffle(work->target_pages, work, &state);
}

/* A pool with all its pages present. */
static inline char *map_pool(const struct work *work, int sharing) {
    size_t length = work->pool_pages * work->page_bytes;
    char *pool = mmap(NULL, length, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (pool == MAP_FAILED) fail("mmap");
    memset(pool, 0, length);
    return pool;
}

static inline uint64_t word_of(const struct work *work, size_t page, size_t word) {
    return (work->round * 0x9e3779b97f4a7c15u ^ page * 0xbf58476d1ce4e5b9u) + word * 0x94d049bb133111ebu;
}

static inline void fill_source(const struct work *work, char *pool) {
    for (size_t i = 0; i < work->page_count; i++) {
        uint64_t *words = (uint64_t *)(pool + work->source_pages[i] * work->page_bytes);
        for (size_t w = 0; w < work->page_bytes / 8; w++) words[w] = word_of(work, work->source_pages[i], w);
    }
}

static inline uint64_t count_bad_bytes(const struct work *work, const char *pool) {
    uint64_t bad = 0;
    for (size_t i = 0; i < work->page_count; i++) {
        const uint64_t *words = (const uint64_t *)(pool + work->target_pages[i] * work->page_bytes);
        for (size_t w = 0; w < work->page_bytes / 8; w++) {
            if (words[w] != word_of(work, work->source_pages[i], w)) bad += 8;
        }
    }
    return bad;
}

/* CPU time of all processes and what the host took away: user, nice, system, irq, softirq, steal of /proc/stat. */
static inline uint64_t machine_ns(void) {
    unsigned long long user, nice, system, idle, iowait, irq, softirq, steal;
    FILE *stat = fopen("/proc/stat", "r");
    if (!stat) fail("/proc/stat");
    if (fscanf(stat, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait, &irq,
               &softirq, &steal) != 8) {
        fail("/proc/stat");
    }
    fclose(stat);
    return (user + nice + system + irq + softirq + steal) * 10000000u;
}

/* What the second process tells the first after a round. */
struct outcome {
    uint64_t end_ns;
    uint64_t cpu_ns;
    uint64_t bad_bytes;
};

static inline void write_all(int fd, const void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, (const char *)bytes + done, length - done);
        if (n <= 0) fail("write");
        done += (size_t)n;
    }
}

/* 0 at the end of the stream. */
static inline int read_all(int fd, void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t n = read(fd, (char *)bytes + done, length - done);
        if (n < 0) fail("read");
        if (n == 0) return 0;
        done += (size_t)n;
    }
    return 1;
}

static inline int next_round(void) {
    char line[64];
    return fgets(line, sizeof line, stdin) != NULL;
}

static inline void await(int from_target) {
    char ready;
    if (!read_all(from_target, &ready, 1)) fail("the second process ended");
}

static inline void print_round(uint64_t start_ns, uint64_t cpu_ns, uint64_t everybody_ns, const struct outcome *target) {
    printf("%llu %llu %llu %llu\n", (unsigned long long)(target->end_ns - start_ns),
           (unsigned long long)(cpu_ns + target->cpu_ns), (unsigned long long)everybody_ns,
           (unsigned long long)target->bad_bytes);
    fflush(stdout);
}

/* What a yardstick that sends does in a round: moves its pages out of the pool, or takes all of them into it. */
typedef void move_pages(void *path, const struct work *work, char *pool);

/* The second process: takes the pages of each round, until the first has ended. */
static inline void serve_rounds(struct work *work, char *pool, int from_source, int to_source, move_pages *receive,
                                void *path) {
    write_all(to_source, "r", 1);
    char go;
    while (read_all(from_source, &go, 1)) {
        draw_pages(work);
        uint64_t cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        write_all(to_source, "r", 1);
        receive(path, work, pool);
        struct outcome outcome = {.end_ns = clock_ns(CLOCK_MONOTONIC)};
        outcome.cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
        write_all(to_source, "r", 1);
        outcome.bad_bytes = count_bad_bytes(work, pool);
        write_all(to_source, &outcome, sizeof outcome);
    }
}

/* The first process, to the end of its input. */
static inline void run_rounds(struct work *work, char *pool, int to_target, int from_target, move_pages *send,
                              void *path) {
    await(from_target);
    while (next_round()) {
        draw_pages(work);
        fill_source(work, pool);
        write_all(to_target, "g", 1);
        await(from_target);
        uint64_t everybody_ns = machine_ns();
        uint64_t cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        uint64_t start_ns = clock_ns(CLOCK_MONOTONIC);
        send(path, work, pool);
        cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
        await(from_target);
        everybody_ns = machine_ns() - everybody_ns;
        struct outcome outcome;
        if (!read_all(from_target, &outcome, sizeof outcome)) fail("the second process ended");
        print_round(start_ns, cpu_ns, everybody_ns, &outcome);
    }
}

#endif
