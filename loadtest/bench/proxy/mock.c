// A vLLM pod that costs next to nothing: it answers as a prefill pod or a decode pod does, without a model behind it.
//
//   mock [--port 0] [--gap-us 0] [--blocks 200] [--echo PREFIX]          prints the port it listens on
//
// POST /v1/chat/completions, /v1/completions; GET /health, /v1/models, /version, /metrics, /kv_event_sources. With
// --echo, answers of chats begin with the 16 characters that follow the last PREFIX in the request, and a hand-over from
// a process that is no more fails, as with vLLM. Faults can be ordered: faults.h.
// An answer has max_completion_tokens or max_tokens tokens (16 if neither is said); unstreamed ones come at once.
// A stream is the role, one chunk per token, the usage if it was asked for, and [DONE]; each event is an HTTP chunk
// and a send() of its own, as uvicorn does it. Tokens come --gap-us apart; with 0, every stream gets one token per turn
// of the loop. Shapes are those of vLLM 0.32.

#include "common.h"

enum { EVENTS_AT_ONCE = 512, READ_AT_ONCE = 1 << 16, CHUNK_ROOM = 1024, ECHO = 16 };

#define MODEL "mock"
#define FINGERPRINT "vllm-0.32.0+mock-1"
#define CREATED "1795980929"

typedef struct Connection {
    int socket;
    bool closed, waits_to_send, close_after;
    Buffer in, out;
    size_t head, body;  // sizes of the request that is coming in, 0 while its head is not complete

    bool streaming, queued, chat, wants_usage, wants_stream, keeps_blocks;
    int tokens, sent, prompt_tokens, struck;
    long request;
    int64_t due_ns;
    char id[48], echo[ECHO + 1];
    struct Connection *next;
} Connection;

typedef struct {
    Connection *first, *last;
} Queue;

static void serve_requests(Connection *connection);

static int poller;
static int64_t gap_ns;
static int blocks = 200;
static const char *echo;
static long requests, chats, prompt_total, token_total;
static double started_at;
static Buffer handover;
static Queue streams, graveyard;

static void push(Queue *queue, Connection *connection) {
    connection->next = NULL;
    if (queue->last != NULL) queue->last->next = connection;
    else queue->first = connection;
    queue->last = connection;
}

static Connection *pop(Queue *queue) {
    Connection *connection = queue->first;
    queue->first = connection->next;
    if (queue->first == NULL) queue->last = NULL;
    return connection;
}

// ---------------------------------------------------------------------------------------------------- sending

// To be buried, once nothing else holds it.
static void lay_out(Connection *connection) {
    if (connection->closed && !connection->queued && !connection->struck) push(&graveyard, connection);
}

static void close_connection(Connection *connection) {
    if (connection->closed) return;
    connection->closed = true;
    close(connection->socket);
    lay_out(connection);
}

static void watch(Connection *connection, bool waits_to_send) {
    if (connection->waits_to_send == waits_to_send) return;
    connection->waits_to_send = waits_to_send;
    struct epoll_event event = {.events = EPOLLIN | (waits_to_send ? EPOLLOUT : 0), .data.ptr = connection};
    epoll_ctl(poller, EPOLL_CTL_MOD, connection->socket, &event);
}

static void send_rest(Connection *connection) {
    ssize_t sent = send(connection->socket, connection->out.data, connection->out.length, MSG_NOSIGNAL);
    if (sent > 0) buffer_drop(&connection->out, sent);
    else if (sent < 0 && errno != EAGAIN) close_connection(connection);
    if (!connection->closed) watch(connection, connection->out.length > 0);
}

static void send_bytes(Connection *connection, const char *data, size_t length) {
    if (connection->closed) return;
    if (connection->out.length == 0) {
        ssize_t sent = send(connection->socket, data, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
            close_connection(connection);
            return;
        }
        if (sent > 0) {
            data += sent;
            length -= sent;
        }
    }
    if (length > 0) {
        buffer_add(&connection->out, data, length);
        watch(connection, true);
    }
}

static void answer(Connection *connection, const char *status, const char *type, const char *body, size_t length) {
    char head[320];
    int size = snprintf(head, sizeof head,
                        "HTTP/1.1 %s\r\ndate: Sun, 29 Nov 2026 14:00:00 GMT\r\nserver: uvicorn\r\n"
                        "content-length: %zu\r\ncontent-type: %s\r\n\r\n", status, length, type);
    Buffer whole = {0};
    buffer_add(&whole, head, size);
    buffer_add(&whole, body, length);
    send_bytes(connection, whole.data, whole.length);
    free(whole.data);
    if (connection->close_after) shutdown(connection->socket, SHUT_WR);
}

static void answer_json(Connection *connection, const char *body) {
    answer(connection, "200 OK", "application/json", body, strlen(body));
}

// ---------------------------------------------------------------------------------------------------- streams

static void send_event(Connection *connection, const char *data, int length) {
    char chunk[CHUNK_ROOM + 32];
    int size = snprintf(chunk, sizeof chunk, "%x\r\ndata: %.*s\n\n\r\n", length + 8, length, data);
    send_bytes(connection, chunk, size);
}

static int chunk_head(const Connection *connection, char *into) {
    return snprintf(into, CHUNK_ROOM,
                    "{\"id\":\"%s\",\"object\":\"%s\",\"created\":" CREATED ",\"model\":\"" MODEL "\",", connection->id,
                    connection->chat ? "chat.completion.chunk" : "text_completion");
}

static void send_role(Connection *connection) {
    char event[CHUNK_ROOM];
    int size = chunk_head(connection, event);
    size += snprintf(event + size, sizeof event - size,
                     "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"%s\"},\"logprobs\":null,"
                     "\"finish_reason\":null}],\"prompt_token_ids\":null,\"prompt_text\":null}", connection->echo);
    send_event(connection, event, size);
}

static void send_token(Connection *connection, bool is_last) {
    char event[CHUNK_ROOM];
    int size = chunk_head(connection, event);
    const char *text = connection->sent == 0 && connection->chat ? "token" : " token";
    size += snprintf(event + size, sizeof event - size,
                     connection->chat ? "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,"
                                      : "\"choices\":[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,", text);
    size += snprintf(event + size, sizeof event - size, "\"finish_reason\":%s,\"token_ids\":null}]%s}",
                     is_last ? "\"length\",\"stop_reason\":null" : "null",
                     is_last && !connection->wants_usage ? ",\"system_fingerprint\":\"" FINGERPRINT "\"" : "");
    send_event(connection, event, size);
}

static void send_usage(Connection *connection) {
    char event[CHUNK_ROOM];
    int size = chunk_head(connection, event);
    size += snprintf(event + size, sizeof event - size,
                     "\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d,"
                     "\"prompt_tokens_details\":{\"cached_tokens\":%d,\"created_cache_tokens\":0}},"
                     "\"system_fingerprint\":\"" FINGERPRINT "\"}",
                     connection->prompt_tokens, connection->prompt_tokens + connection->tokens, connection->tokens,
                     (connection->prompt_tokens - 1) / 16 * 16);
    send_event(connection, event, size);
}

// Sends the next token and whatever vLLM sends with it.
static void step(Connection *connection) {
    if (connection->sent == 0 && connection->chat) send_role(connection);
    bool is_last = connection->sent + 1 == connection->tokens;
    send_token(connection, is_last);
    connection->sent++;
    if (!is_last) return;
    if (connection->wants_usage) send_usage(connection);
    send_event(connection, "[DONE]", 6);
    send_bytes(connection, "0\r\n\r\n", 5);
    connection->streaming = false;
    if (connection->close_after) shutdown(connection->socket, SHUT_WR);
}

static void begin_stream(Connection *connection) {
    static const char head[] = "HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 14:00:00 GMT\r\nserver: uvicorn\r\n"
                               "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    send_bytes(connection, head, sizeof head - 1);
    connection->sent = 0;
    connection->streaming = true;
    connection->due_ns = now_ns() + gap_ns;
    step(connection);
    if (connection->streaming && !connection->closed) {
        connection->queued = true;
        push(&streams, connection);
    }
}

static void advance(Connection *connection, int64_t now) {
    step(connection);
    if (connection->closed) return;
    if (!connection->streaming) {
        serve_requests(connection);
        return;
    }
    connection->due_ns += gap_ns;
    if (connection->due_ns < now) connection->due_ns = now;
    connection->queued = true;
    push(&streams, connection);
}

// One token for every stream that is due. The gap is the same for all, so the queue is in the order of due times.
static void run_streams(void) {
    Connection *last = streams.last;
    int64_t now = now_ns();
    while (streams.first != NULL && streams.first->due_ns <= now) {
        Connection *connection = pop(&streams);
        connection->queued = false;
        if (connection->closed) lay_out(connection);
        else advance(connection, now);
        if (connection == last) return;
    }
}

// ---------------------------------------------------------------------------------------------------- requests

// The value of a key, wherever in the body it first stands: in JSON text quotes are escaped, so text is no key.
static const char *value_of(const char *body, size_t length, const char *key) {
    const char *end = body + length, *at = body;
    while ((at = memmem(at, end - at, key, strlen(key))) != NULL) {
        at += strlen(key);
        while (at < end && *at == ' ') at++;
        if (at < end && *at == ':') {
            at++;
            while (at < end && *at == ' ') at++;
            return at < end ? at : NULL;
        }
    }
    return NULL;
}

static bool is_true(const char *body, size_t length, const char *key) {
    const char *value = value_of(body, length, key);
    return value != NULL && *value == 't';
}

static int tokens_wanted(const char *body, size_t length) {
    static const char *const keys[] = {"\"max_completion_tokens\"", "\"max_tokens\""};
    for (int i = 0; i < 2; i++) {
        const char *value = value_of(body, length, keys[i]);
        int tokens = value == NULL ? 0 : atoi(value);
        if (tokens > 0) return tokens;
    }
    return 16;
}

// Bytes of the messages or the prompt, which are the same on both legs, unlike the body around them.
static int prompt_bytes(const char *body, size_t length) {
    const char *end = body + length, *start = value_of(body, length, "\"messages\"");
    if (start == NULL) start = value_of(body, length, "\"prompt\"");
    if (start == NULL) return 0;
    int depth = 0;
    const char *at = start;
    while (at < end) {
        char now = *at++;
        if (now == '[' || now == '{') depth++;
        else if (now == ']' || now == '}') depth--;
        else if (now == '"')
            for (const char *quote; (quote = memchr(at, '"', end - at)) != NULL;) {
                const char *slash = quote;
                while (slash > at && slash[-1] == '\\') slash--;
                at = quote + 1;
                if ((quote - slash) % 2 == 0) break;
            }
        if (depth <= 0) break;
    }
    return (int)(at - start);
}

static void answer_whole(Connection *connection, bool keeps_blocks) {
    char piece[1024];
    Buffer body = {0};
    int size = snprintf(piece, sizeof piece,
                        "{\"id\":\"%s\",\"object\":\"%s\",\"created\":" CREATED ",\"model\":\"" MODEL "\",\"choices\":"
                        "[{\"index\":0,%s\"", connection->id, connection->chat ? "chat.completion" : "text_completion",
                        connection->chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    buffer_add(&body, piece, size);
    if (connection->chat) buffer_add(&body, connection->echo, strlen(connection->echo));
    for (int i = 0; i < connection->tokens; i++) {
        int space = i == 0 && connection->chat;  // a chat answer begins without one
        buffer_add(&body, &" token"[space], 6 - space);
    }
    size = snprintf(piece, sizeof piece,
                    "\"%s,\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null,"
                    "\"routed_experts\":null}],\"service_tier\":null,\"system_fingerprint\":\"" FINGERPRINT "\","
                    "\"usage\":"
                    "{\"prompt_tokens\":%d,\"total_tokens\":%d,\"completion_tokens\":%d,\"prompt_tokens_details\":"
                    "{\"cached_tokens\":%d,\"created_cache_tokens\":0,\"multimodal_tokens\":null},"
                    "\"completion_tokens_details\":null},\"prompt_logprobs\":null,\"prompt_token_ids\":null,"
                    "\"prompt_text\":null,\"kv_transfer_params\":",
                    connection->chat ? ",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,"
                                       "\"reasoning\":null}" : "",
                    connection->prompt_tokens, connection->prompt_tokens + connection->tokens, connection->tokens,
                    (connection->prompt_tokens - 1) / 16 * 16);
    buffer_add(&body, piece, size);
    if (keeps_blocks) {
        buffer_add(&body, handover.data, handover.length);
        size = snprintf(piece, sizeof piece, ",\"remote_request_id\":\"%s\",\"remote_num_tokens\":%d}", connection->id,
                        connection->prompt_tokens);
        buffer_add(&body, piece, size);
    } else buffer_add(&body, "null", 4);
    size = snprintf(piece, sizeof piece, ",\"ec_transfer_params\":null,\"metrics\":null}");
    buffer_add(&body, piece, size);
    answer(connection, "200 OK", "application/json", body.data, body.length);
    free(body.data);
}

#include "faults.h"

static void find_echo(Connection *connection, const char *body, size_t length) {
    const char *end = body + length, *last = NULL;
    size_t size = strlen(echo);
    for (const char *at = body; (at = memmem(at, end - at, echo, size)) != NULL;) last = at += size;
    connection->echo[0] = '\0';
    if (last != NULL && end - last >= ECHO) memcpy(connection->echo, last, ECHO);
}

// Whether the process that keeps the blocks for this request has ended.
static bool is_stale(const char *body, size_t length) {
    const char *engine = value_of(body, length, "\"remote_engine_id\"");
    if (engine == NULL || *engine != '"') return false;
    pid_t process = strtol(engine + 1, NULL, 16);
    return process > 0 && kill(process, 0) != 0 && errno == ESRCH;
}

static void generate(Connection *connection, const char *body, size_t length) {
    connection->request = ++requests;
    connection->tokens = tokens_wanted(body, length);
    connection->prompt_tokens = prompt_bytes(body, length) / 4 + 1;
    connection->wants_usage = is_true(body, length, "\"include_usage\"");
    connection->keeps_blocks = is_true(body, length, "\"do_remote_decode\"");
    connection->wants_stream = is_true(body, length, "\"stream\"");
    chats += connection->chat;
    prompt_total += connection->prompt_tokens;
    token_total += connection->tokens;
    snprintf(connection->id, sizeof connection->id, "%s-%016llx", connection->chat ? "chatcmpl" : "cmpl",
             (unsigned long long)requests * 0x9E3779B97F4A7C15ull);
    if (echo != NULL) {
        find_echo(connection, body, length);
        if (is_stale(body, length)) {
            answer(connection, "500 Internal Server Error", "application/json", failed, strlen(failed));
            return;
        }
    }
    if (fault_left > 0 && strike(connection)) return;
    respond(connection);
}

static void show_metrics(Connection *connection) {
    static const char labels[] = "engine=\"0\",model_name=\"" MODEL "\"";
    char page[4096];
    int size = snprintf(page, sizeof page,
        "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %.6f\n"
        "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{%s} 0.0\n"
        "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{%s} 0.0\n"
        "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{%s} 0.0\n"
        "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{%s} %ld.0\n"
        "# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{%s} %ld.0\n"
        "# TYPE vllm:request_success_total counter\n"
        "vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"" MODEL "\"} %ld.0\n"
        "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\","
        "engine=\"0\",num_gpu_blocks=\"1000000\"} 1.0\n"
        "# TYPE mock_chats counter\nmock_chats %ld\n",
        started_at, labels, labels, labels, labels, prompt_total, labels, token_total,
        requests, chats);
    answer(connection, "200 OK", "text/plain; version=0.0.4; charset=utf-8", page, size);
}

static bool asks(const char *head, const char *start) {
    size_t size = strlen(start);
    return strncmp(head, start, size) == 0 && (head[size] == ' ' || head[size] == '?');
}

static void serve(Connection *connection, const char *head, const char *body, size_t length) {
    connection->chat = asks(head, "POST /v1/chat/completions");
    if (connection->chat || asks(head, "POST /v1/completions")) generate(connection, body, length);
    else if (asks(head, "GET /health")) answer_json(connection, "");
    else if (asks(head, "GET /version")) answer_json(connection, "{\"version\":\"0.32.0\"}");
    else if (asks(head, "GET /kv_event_sources")) answer_json(connection, "{}");
    else if (asks(head, "GET /metrics")) show_metrics(connection);
    else if (asks(head, "GET /v1/models"))
        answer_json(connection, "{\"object\":\"list\",\"data\":[{\"id\":\"" MODEL "\",\"object\":\"model\",\"created\":"
                    CREATED ",\"owned_by\":\"vllm\",\"root\":\"" MODEL "\",\"parent\":null,\"max_model_len\":1048576,"
                    "\"permission\":[]}]}");
    else if (asks(head, "POST /fault")) order_fault(connection, head);
    else if (asks(head, "DELETE /fault")) end_fault(connection);
    else answer(connection, "404 Not Found", "application/json", "{\"detail\":\"Not Found\"}", 22);
}

static bool read_head(Connection *connection) {
    size_t head = head_length(connection->in.data, connection->in.length);
    if (head == 0) return false;
    const char *length = header(connection->in.data, head, "\r\ncontent-length:");
    const char *closing = header(connection->in.data, head, "\r\nconnection:");
    connection->close_after = closing != NULL && strncasecmp(closing, "close", 5) == 0;
    connection->head = head;
    connection->body = length == NULL ? 0 : strtoul(length, NULL, 10);
    return true;
}

// Serves the requests that have come in whole, one after the other.
static void serve_requests(Connection *connection) {
    while (!connection->closed && !connection->streaming && connection->in.length > 0) {
        if (connection->head == 0 && !read_head(connection)) return;
        const char *head = connection->in.data;
        if (header(head, connection->head, "\r\ntransfer-encoding:") != NULL) {
            connection->close_after = true;
            answer(connection, "411 Length Required", "text/plain", "no chunked bodies here", 22);
            buffer_drop(&connection->in, connection->in.length);
            return;
        }
        if (connection->in.length < connection->head + connection->body) return;
        serve(connection, head, head + connection->head, connection->body);
        buffer_drop(&connection->in, connection->head + connection->body);
        connection->head = 0;
    }
}

// ---------------------------------------------------------------------------------------------------- the loop

static void welcome(int listener) {
    int socket;
    while ((socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        send_at_once(socket);
        Connection *connection = must(calloc(1, sizeof *connection));
        connection->socket = socket;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        epoll_ctl(poller, EPOLL_CTL_ADD, socket, &event);
    }
}

static void receive(Connection *connection) {
    char *room = buffer_reserve(&connection->in, READ_AT_ONCE);
    ssize_t got = recv(connection->socket, room, READ_AT_ONCE, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) close_connection(connection);
    else if (got > 0) {
        connection->in.length += got;
        serve_requests(connection);
    }
}

static int wait_for_events(struct epoll_event *events, int64_t due_ns) {
    if (streams.first != NULL && streams.first->due_ns < due_ns) due_ns = streams.first->due_ns;
    if (due_ns == INT64_MAX) return epoll_wait(poller, events, EVENTS_AT_ONCE, -1);
    int64_t ahead = due_ns - now_ns();
    if (ahead < 0) ahead = 0;
    struct timespec limit = {.tv_sec = ahead / 1000000000, .tv_nsec = ahead % 1000000000};
    return epoll_pwait2(poller, events, EVENTS_AT_ONCE, &limit, NULL);
}

static void bury(void) {
    while (graveyard.first != NULL) {
        Connection *connection = pop(&graveyard);
        free(connection->in.data);
        free(connection->out.data);
        free(connection);
    }
}

static void make_handover(int port) {
    char piece[256];
    int size = snprintf(piece, sizeof piece,
                        "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_engine_id\":"
                        "\"%08x-0000-4000-8000-%012d\",\"remote_host\":\"127.0.0.1\",\"remote_port\":5600,"
                        "\"tp_size\":1,\"remote_block_ids\":[[", (unsigned)getpid(), port);
    buffer_add(&handover, piece, size);
    for (int i = 0; i < blocks; i++) {
        size = snprintf(piece, sizeof piece, i == 0 ? "%d" : ",%d", i + 1);
        buffer_add(&handover, piece, size);
    }
    buffer_add(&handover, "]]", 2);
}

int main(int count, char **arguments) {
    behave();
    int port = atoi(option(count, arguments, "--port", "0"));
    gap_ns = atol(option(count, arguments, "--gap-us", "0")) * INT64_C(1000);
    blocks = atoi(option(count, arguments, "--blocks", "200"));
    echo = option(count, arguments, "--echo", NULL);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    started_at = now.tv_sec + now.tv_nsec / 1e9;

    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = loopback(port);
    socklen_t size = sizeof address;
    int on = 1;  // a port whose last owner was killed is free at once
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&address, size) || listen(listener, 4096)) die("cannot listen");
    getsockname(listener, (void *)&address, &size);
    make_handover(ntohs(address.sin_port));
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);

    poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = NULL}, events[EVENTS_AT_ONCE];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &wanted);
    for (int64_t fault_due_ns = INT64_MAX;;) {
        int ready = wait_for_events(events, fault_due_ns);
        for (int i = 0; i < ready; i++) {
            Connection *connection = events[i].data.ptr;
            if (connection == NULL) {
                welcome(listener);
                continue;
            }
            if (!connection->closed && (events[i].events & EPOLLOUT)) send_rest(connection);
            if (!connection->closed && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) receive(connection);
        }
        run_streams();
        if (struck != NULL) fault_due_ns = run_faults(now_ns());
        else fault_due_ns = INT64_MAX;
        bury();
    }
}
