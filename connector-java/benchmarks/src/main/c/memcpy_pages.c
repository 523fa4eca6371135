/* Copies random pages of a private pool to random pages of a mapping that a second process shares. */
#include "yardstick.h"

static void serve_target(struct work *work, const char *pool, int from_source, int to_source) {
    char go;
    while (read_all(from_source, &go, 1)) {
        draw_pages(work);
        struct outcome outcome = {.bad_bytes = count_bad_bytes(work, pool)};
        write_all(to_source, &outcome, sizeof outcome);
    }
}

int main(int argc, char **argv) {
    struct work work = parse_work(argc, argv);
    char *target = map_pool(&work, MAP_SHARED);
    int to_target[2], to_source[2];
    if (pipe(to_target) || pipe(to_source)) fail("pipe");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        close(to_target[1]);
        serve_target(&work, target, to_target[0], to_source[1]);
        return 0;
    }
    close(to_target[0]);
    char *source = map_pool(&work, MAP_PRIVATE);
    while (next_round()) {
        draw_pages(&work);
        fill_source(&work, source);
        uint64_t everybody_ns = machine_ns();
        uint64_t cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        uint64_t start_ns = clock_ns(CLOCK_MONOTONIC);
        for (size_t i = 0; i < work.page_count; i++) {
            memcpy(target + work.target_pages[i] * work.page_bytes, source + work.source_pages[i] * work.page_bytes,
                   work.page_bytes);
        }
        uint64_t end_ns = clock_ns(CLOCK_MONOTONIC);
        cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
        everybody_ns = machine_ns() - everybody_ns;
        struct outcome outcome;
        write_all(to_target[1], "g", 1);
        if (!read_all(to_source[0], &outcome, sizeof outcome)) fail("the second process ended");
        outcome.end_ns = end_ns;
        print_round(start_ns, cpu_ns, everybody_ns, &outcome);
    }
    close(to_target[1]);
    waitpid(child, NULL, 0);
    return 0;
}
