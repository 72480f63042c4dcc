// Asks for completions over and over and looks closely at what comes back.
//
//   load --port P --body FILE [--path /v1/chat/completions] [--concurrency 1] [--first 0] [--ramp-ms 0]
//        (--seconds S | --requests N) [--drain-s 30] (--events E | --expect TEXT)
//
// Every connection sends its next request when the last one is answered; --ramp-ms spreads the first ones. Each
// "@@@@@@@@" of the body becomes the request's number, counted from --first. A streamed answer is complete when it has
// exactly E events, the last of them [DONE], and ends as HTTP says it must; an unstreamed one when it holds TEXT.
// Prints one line of JSON. ttft: from the first byte sent to the first byte of the answer's body, or for a request that
// had to wait for its connection, from then. gap: between two reads of one stream that brought something.

#include "common.h"

enum { EVENTS_AT_ONCE = 1024, READ_AT_ONCE = 1 << 17, MARK = 8, TAIL = 14 };
typedef enum { HEAD, FIXED, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, UNTIL_CLOSE } Stage;
typedef enum { MORE, COMPLETE, BROKEN } Verdict;

typedef struct {
    int socket;
    bool busy, closing, waits_to_send;
    char *request;
    size_t sent;
    int64_t asked_ns, first_ns, last_ns;

    Stage stage;
    Buffer head, body;  // body: of unstreamed answers only
    int status;
    size_t left;  // bytes of the body or chunk to come
    size_t digits, line;
    long events, body_bytes;
    char tail[TAIL];  // the last bytes of the body
} Client;

typedef struct {
    float *values;
    size_t count, room;
} Series;

static int poller, port;
static char *request;
static size_t request_size;
static size_t marks[16];
static int mark_count;
static const char *expected_text;
static long expected_events, number, requests_left = -1, begun, in_flight;
static long ok, wrong_status, incomplete, broken, events_seen, reads;
static int64_t stop_ns, last_ns;
static Series ttft, gap, total;

static void add(Series *series, int64_t ns) {
    if (series->count == series->room) {
        series->room = series->room ? 2 * series->room : 1 << 14;
        series->values = must(realloc(series->values, series->room * sizeof *series->values));
    }
    series->values[series->count++] = (float)(ns / 1e6);
}

// ---------------------------------------------------------------------------------------------------- asking

static void watch(Client *client, bool waits_to_send) {
    if (client->waits_to_send == waits_to_send) return;
    client->waits_to_send = waits_to_send;
    struct epoll_event event = {.events = EPOLLIN | (waits_to_send ? EPOLLOUT : 0), .data.ptr = client};
    epoll_ctl(poller, EPOLL_CTL_MOD, client->socket, &event);
}

static bool dial(Client *client) {
    struct sockaddr_in address = loopback(port);
    client->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(client->socket, (void *)&address, sizeof address)) {
        close(client->socket);
        client->socket = -1;
        return false;
    }
    fcntl(client->socket, F_SETFL, O_NONBLOCK);
    send_at_once(client->socket);
    client->waits_to_send = client->closing = false;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
    epoll_ctl(poller, EPOLL_CTL_ADD, client->socket, &event);
    return true;
}

static void hang_up(Client *client) {
    close(client->socket);
    client->socket = -1;
}

static void send_request(Client *client) {
    while (client->sent < request_size) {
        ssize_t sent = send(client->socket, client->request + client->sent, request_size - client->sent, MSG_NOSIGNAL);
        if (sent < 0) break;  // what is wrong, if it is not a full buffer, shows when the answer is read
        client->sent += sent;
    }
    watch(client, client->sent < request_size);
}

static bool may_ask(void) {
    return requests_left < 0 ? now_ns() < stop_ns : requests_left > 0;
}

static void ask(Client *client) {
    char digits[16];
    while (client->socket < 0 && !dial(client)) {
        broken++;
        begun++;
        if (requests_left > 0) requests_left--;
        if (!may_ask()) return;
        usleep(1000);
    }
    snprintf(digits, sizeof digits, "%08u", (unsigned)(number++ % 100000000));
    for (int i = 0; i < mark_count; i++) memcpy(client->request + marks[i], digits, MARK);
    if (requests_left > 0) requests_left--;
    begun++;
    in_flight++;
    client->busy = true;
    client->stage = HEAD;
    client->head.length = client->body.length = client->sent = 0;
    client->events = client->body_bytes = client->first_ns = 0;
    memset(client->tail, 0, TAIL);
    client->asked_ns = now_ns();
    send_request(client);
}

// ---------------------------------------------------------------------------------------------------- listening

static void take_body(Client *client, const char *data, size_t length, int64_t now) {
    if (length == 0) return;
    if (client->first_ns == 0) client->first_ns = now;
    client->body_bytes += length;
    if (!expected_events) {
        buffer_add(&client->body, data, length);
        return;
    }
    const char *end = data + length;
    char before = client->tail[TAIL - 1];
    // An event ends at the second of two line ends.
    for (const char *at = data; (at = memchr(at, '\n', end - at)) != NULL; at++) {
        if ((at == data ? before : at[-1]) != '\n') continue;
        client->events++;
        events_seen++;
    }
    size_t keep = length < TAIL ? TAIL - length : 0;
    memmove(client->tail, client->tail + TAIL - keep, keep);
    memcpy(client->tail + keep, end - (TAIL - keep), TAIL - keep);
}

static bool take_head(Client *client, const char **at, const char *end) {
    size_t before = client->head.length;
    buffer_add(&client->head, *at, end - *at);
    size_t length = head_length(client->head.data, client->head.length);
    *at = length == 0 ? end : *at + (length - before);
    if (length == 0) return client->head.length < 1 << 16;
    const char *head = client->head.data;
    const char *connection = header(head, length, "\r\nconnection:");
    const char *size = header(head, length, "\r\ncontent-length:");
    if (length < 12) return false;
    client->status = atoi(head + 9);
    client->closing = connection != NULL && strncasecmp(connection, "close", 5) == 0;
    client->digits = client->left = client->line = 0;
    client->head.length = 0;
    if (client->status < 200) return true;
    if (header(head, length, "\r\ntransfer-encoding:") != NULL) client->stage = CHUNK_SIZE;
    else if (size != NULL) {
        client->left = strtoul(size, NULL, 10);
        client->stage = FIXED;
    } else client->stage = UNTIL_CLOSE;
    return true;
}

static size_t take_part(Client *client, const char *at, const char *end, int64_t now) {
    size_t length = end - at;
    if (client->stage != UNTIL_CLOSE && length > client->left) length = client->left;
    take_body(client, at, length, now);
    client->left -= client->stage == UNTIL_CLOSE ? 0 : length;
    return length;
}

static int hex(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if ((digit | 32) >= 'a' && (digit | 32) <= 'f') return (digit | 32) - 'a' + 10;
    return -1;
}

static Verdict take(Client *client, const char *at, const char *end, int64_t now) {
    while (at < end) {
        switch (client->stage) {
        case HEAD:
            if (!take_head(client, &at, end)) return BROKEN;
            if (client->stage == FIXED && client->left == 0) return COMPLETE;
            break;
        case FIXED:
            at += take_part(client, at, end, now);
            if (client->left == 0) return at == end ? COMPLETE : BROKEN;
            break;
        case CHUNK_SIZE:
            if (*at == '\n') {
                if (client->digits == 0) return BROKEN;
                client->stage = client->left == 0 ? TRAILER : CHUNK;
                client->digits = client->line = 0;
            } else if (hex(*at) >= 0) {
                client->left = 16 * client->left + hex(*at);
                if (++client->digits > 8) return BROKEN;
            } else if (*at != '\r') return BROKEN;
            at++;
            break;
        case CHUNK:
            at += take_part(client, at, end, now);
            if (client->left == 0) client->stage = CHUNK_END;
            break;
        case CHUNK_END:
            if (*at != '\r' && *at != '\n') return BROKEN;
            if (*at++ == '\n') client->stage = CHUNK_SIZE;
            break;
        case TRAILER:
            if (*at == '\n' && client->line == 0) return at + 1 == end ? COMPLETE : BROKEN;
            client->line = *at == '\n' ? 0 : client->line + (*at != '\r');
            at++;
            break;
        case UNTIL_CLOSE:
            at += take_part(client, at, end, now);
            break;
        }
    }
    return MORE;
}

static bool is_complete(const Client *client) {
    if (expected_events)
        return client->events == expected_events && memcmp(client->tail, "data: [DONE]\n\n", TAIL) == 0;
    const Buffer *body = &client->body;
    return body->length > 0 && memmem(body->data, body->length, expected_text, strlen(expected_text)) != NULL;
}

static void finish(Client *client, Verdict verdict, int64_t now) {
    in_flight--;
    client->busy = false;
    if (verdict == BROKEN) broken++;
    else if (client->status != 200) wrong_status++;
    else if (!is_complete(client)) incomplete++;
    else {
        ok++;
        add(&ttft, client->first_ns - client->asked_ns);
        add(&total, now - client->asked_ns);
    }
    if (verdict == BROKEN || client->closing || client->stage == UNTIL_CLOSE) hang_up(client);
    if (may_ask()) ask(client);
}

static void receive(Client *client) {
    static char data[READ_AT_ONCE];
    ssize_t got = recv(client->socket, data, sizeof data, 0);
    if (got < 0 && errno == EAGAIN) return;
    int64_t now = last_ns = now_ns();
    if (got <= 0) {
        if (!client->busy) hang_up(client);
        else finish(client, got == 0 && client->stage == UNTIL_CLOSE ? COMPLETE : BROKEN, now);
        return;
    }
    if (!client->busy) {  // nobody asked
        broken++;
        hang_up(client);
        return;
    }
    reads++;
    long before = client->body_bytes;
    Verdict verdict = take(client, data, data + got, now);
    if (client->body_bytes > before) {
        if (before > 0) add(&gap, now - client->last_ns);
        client->last_ns = now;
    }
    if (verdict != MORE) finish(client, verdict, now);
}

// ---------------------------------------------------------------------------------------------------- the whole

static void make_request(const char *path, const char *file) {
    FILE *input = fopen(file, "rb");
    Buffer body = {0}, whole = {0};
    size_t got;
    char head[512];
    if (input == NULL) die(file);
    while ((got = fread(buffer_reserve(&body, 1 << 16), 1, 1 << 16, input)) > 0) body.length += got;
    fclose(input);
    int size = snprintf(head, sizeof head,
                        "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: */*\r\nuser-agent: load\r\n"
                        "content-type: application/json\r\ncontent-length: %zu\r\n\r\n", path, port, body.length);
    buffer_add(&whole, head, size);
    buffer_add(&whole, body.data, body.length);
    request = whole.data;
    request_size = whole.length;
    free(body.data);
    const char *at = request, *end = request + request_size;
    for (; mark_count < 16 && (at = memmem(at, end - at, "@@@@@@@@", MARK)) != NULL; at += MARK)
        marks[mark_count++] = at - request;
}

static int by_size(const void *left, const void *right) {
    float a = *(const float *)left, b = *(const float *)right;
    return (a > b) - (a < b);
}

static void print_series(const char *name, Series *series) {
    if (series->count == 0) {
        printf(",\"%s_p50\":null,\"%s_p99\":null", name, name);
        return;
    }
    qsort(series->values, series->count, sizeof *series->values, by_size);
    printf(",\"%s_p50\":%.4f,\"%s_p99\":%.4f", name, series->values[(series->count - 1) / 2], name,
           series->values[(size_t)(0.99 * (series->count - 1))]);
}

int main(int count, char **arguments) {
    behave();
    const char *file = option(count, arguments, "--body", NULL), *limit = option(count, arguments, "--requests", NULL);
    port = atoi(option(count, arguments, "--port", "0"));
    int concurrency = atoi(option(count, arguments, "--concurrency", "1"));
    number = atol(option(count, arguments, "--first", "0"));
    expected_events = atol(option(count, arguments, "--events", "0"));
    expected_text = option(count, arguments, "--expect", "\"finish_reason\":\"length\"");
    int64_t ramp_ns = atol(option(count, arguments, "--ramp-ms", "0")) * INT64_C(1000000);
    int64_t seconds_ns = (int64_t)(atof(option(count, arguments, "--seconds", "1")) * 1e9);
    int64_t drain_ns = (int64_t)(atof(option(count, arguments, "--drain-s", "30")) * 1e9);
    if (file == NULL || port == 0 || concurrency < 1) {
        fputs("usage: load --port P --body FILE (--seconds S | --requests N) (--events E | --expect TEXT)\n", stderr);
        return 2;
    }
    if (limit != NULL) requests_left = atol(limit);
    make_request(option(count, arguments, "--path", "/v1/chat/completions"), file);

    poller = epoll_create1(EPOLL_CLOEXEC);
    Client *clients = must(calloc(concurrency, sizeof *clients));
    for (int i = 0; i < concurrency; i++) {
        clients[i].request = must(malloc(request_size));
        memcpy(clients[i].request, request, request_size);
        if (!dial(&clients[i])) die("cannot connect");
    }
    int64_t began = now_ns();
    stop_ns = began + seconds_ns;
    int64_t give_up = stop_ns + drain_ns;
    static struct epoll_event events[EVENTS_AT_ONCE];
    int started = 0;
    while (in_flight > 0 || (started < concurrency && may_ask())) {
        while (started < concurrency && may_ask() && now_ns() - began >= ramp_ns * started / concurrency)
            ask(&clients[started++]);
        int ready = epoll_wait(poller, events, EVENTS_AT_ONCE, started < concurrency ? 1 : 200);
        for (int i = 0; i < ready; i++) {
            Client *client = events[i].data.ptr;
            if (client->socket >= 0 && (events[i].events & EPOLLOUT)) send_request(client);
            if (client->socket >= 0 && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) receive(client);
        }
        if (now_ns() > give_up) break;
    }
    printf("{\"seconds\":%.4f,\"requests\":%ld,\"ok\":%ld,\"wrong_status\":%ld,\"incomplete\":%ld,\"broken\":%ld,"
           "\"unfinished\":%ld,\"events\":%ld,\"reads\":%ld",
           (last_ns - began) / 1e9, begun, ok, wrong_status, incomplete, broken, in_flight, events_seen, reads);
    print_series("ttft", &ttft);
    print_series("gap", &gap);
    print_series("total", &total);
    puts("}");
    return 0;
}
