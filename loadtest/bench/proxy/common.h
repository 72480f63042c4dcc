// What the mock pod and the load client share: time, buffers that grow, heads of HTTP messages.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    char *data;
    size_t length, room;
} Buffer;

static inline void *must(void *memory) {
    if (memory == NULL) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

static inline void die(const char *what) {
    perror(what);
    exit(1);
}

static inline char *buffer_reserve(Buffer *buffer, size_t more) {
    if (buffer->length + more > buffer->room) {
        buffer->room = 2 * (buffer->length + more);
        buffer->data = must(realloc(buffer->data, buffer->room));
    }
    return buffer->data + buffer->length;
}

static inline void buffer_add(Buffer *buffer, const char *data, size_t length) {
    memcpy(buffer_reserve(buffer, length), data, length);
    buffer->length += length;
}

static inline void buffer_drop(Buffer *buffer, size_t from_front) {
    buffer->length -= from_front;
    memmove(buffer->data, buffer->data + from_front, buffer->length);
}

static inline int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

// Length of the head with its empty line, or 0 while it is not complete.
static inline size_t head_length(const char *data, size_t length) {
    const char *end = memmem(data, length, "\r\n\r\n", 4);
    return end == NULL ? 0 : (size_t)(end - data) + 4;
}

// The value of a header: where it begins, or NULL. `name` is written "\r\nname:".
static inline const char *header(const char *head, size_t length, const char *name) {
    size_t size = strlen(name);
    for (const char *at = head; at + size <= head + length; at++) {
        at = memchr(at, '\r', head + length - at);
        if (at == NULL || at + size > head + length) return NULL;
        if (strncasecmp(at, name, size) == 0) {
            at += size;
            while (*at == ' ') at++;
            return at;
        }
    }
    return NULL;
}

static inline struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline void send_at_once(int socket) {
    int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// A broken connection is an answer of send(), and the process ends when the one that started it does.
static inline void behave(void) {
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() == 1) exit(1);
}

static inline const char *option(int count, char **arguments, const char *name, const char *otherwise) {
    for (int i = 1; i + 1 < count; i += 2)
        if (strcmp(arguments[i], name) == 0) return arguments[i + 1];
    return otherwise;
}
