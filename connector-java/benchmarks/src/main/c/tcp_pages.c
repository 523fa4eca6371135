/*
 * Sends random pages over one blocking TCP loopback stream, each as a header and the page in one writev; the second
 * process reads the header, then the page straight into its place.
 */
#include "yardstick.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

struct header {
    uint64_t target_offset;
    uint32_t length;
    uint32_t imm;
};

static void receive_all(int fd, void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t n = recv(fd, (char *)bytes + done, length - done, MSG_WAITALL);
        if (n <= 0) fail("recv");
        done += (size_t)n;
    }
}

static void send_page(int fd, struct header *header, char *page) {
    struct iovec parts[2] = {{header, sizeof *header}, {page, header->length}};
    struct iovec *part = parts;
    int count = 2;
    while (count > 0) {
        ssize_t n = writev(fd, part, count);
        if (n <= 0) fail("writev");
        size_t left = (size_t)n;
        while (count > 0 && left >= part->iov_len) {
            left -= part->iov_len;
            part++;
            count--;
        }
        if (count > 0) {
            part->iov_base = (char *)part->iov_base + left;
            part->iov_len -= left;
        }
    }
}

static void receive_pages(void *path, const struct work *work, char *pool) {
    int stream = *(int *)path;
    for (size_t i = 0; i < work->page_count; i++) {
        struct header header;
        receive_all(stream, &header, sizeof header);
        receive_all(stream, pool + header.target_offset, header.length);
    }
}

static void send_pages(void *path, const struct work *work, char *pool) {
    int stream = *(int *)path;
    for (size_t i = 0; i < work->page_count; i++) {
        struct header header = {work->target_pages[i] * work->page_bytes, (uint32_t)work->page_bytes, 1};
        send_page(stream, &header, pool + work->source_pages[i] * work->page_bytes);
    }
}

static int listen_on_loopback(struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t length = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd < 0 || bind(fd, (struct sockaddr *)address, length) || listen(fd, 1)
            || getsockname(fd, (struct sockaddr *)address, &length)) {
        fail("listen");
    }
    return fd;
}

int main(int argc, char **argv) {
    struct work work = parse_work(argc, argv);
    struct sockaddr_in address;
    int listener = listen_on_loopback(&address);
    int to_target[2], to_source[2];
    if (pipe(to_target) || pipe(to_source)) fail("pipe");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        close(to_target[1]);
        int stream = accept(listener, NULL, NULL);
        if (stream < 0) fail("accept");
        serve_rounds(&work, map_pool(&work, MAP_SHARED), to_target[0], to_source[1], receive_pages, &stream);
        return 0;
    }
    close(to_target[0]);
    int stream = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (stream < 0 || connect(stream, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    /* A kernel whose default paces (bbr) makes loopback three times slower. Every process may choose reno. */
    setsockopt(stream, IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno"));
    run_rounds(&work, map_pool(&work, MAP_SHARED), to_target[1], to_source[0], send_pages, &stream);
    close(to_target[1]);
    waitpid(child, NULL, 0);
    return 0;
}
