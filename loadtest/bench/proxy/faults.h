// What can be made to go wrong with the mock: included by mock.c in the midst of it.
//
//   POST /fault?kind=cut&times=5&ms=30    the next 5 requests for tokens meet it
//   DELETE /fault                         it is over; answers how many met it: {"struck":3}
//
// A request meets it when it has come in whole. Nothing of this is looked at per token: what is to happen in the midst
// of a stream happens when its time has come, beside the queue of streams.

typedef enum { REFUSE, RESET, CLOSE, GARBAGE, LATE, HANG, CUT, BAD_CHUNK, GIVE_UP, FORGET, KINDS } Kind;

static const char *const kind_names[KINDS] = {
    "refuse",     // an error with the status 503
    "reset",      // the connection is reset, without an answer
    "close",      // the connection is closed, without an answer
    "garbage",    // the answer is no HTTP
    "late",       // the answer comes `ms` later
    "hang",       // no answer; the connection is reset when the fault is over
    "cut",        // `ms` after its beginning a stream is reset within an event; other answers half-way through their body
    "bad_chunk",  // the same with a chunk that has no size in place of the reset
    "give_up",    // the engine ends the request with an error, a stream `ms` after its beginning
    "forget",     // the answer has no kv_transfer_params
};

typedef struct Struck {
    Connection *connection;
    Kind kind;
    long request;
    int64_t due_ns;
    struct Struck *next;
} Struck;

static Kind fault_kind;
static long fault_left, fault_struck;
static int64_t fault_delay_ns;
static Struck *struck;

static const char failed[] =
    "{\"error\":{\"message\":\"Internal server error\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}";
static const char refused[] =
    "{\"error\":{\"message\":\"out of order\",\"type\":\"ServiceUnavailable\",\"param\":null,\"code\":503}}";

static void respond(Connection *connection) {
    if (connection->wants_stream) begin_stream(connection);
    else answer_whole(connection, connection->keeps_blocks);
}

static void hang_up(Connection *connection, bool resets) {
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    if (connection->closed) return;
    if (resets) setsockopt(connection->socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close_connection(connection);
}

static void say_and_hang_up(Connection *connection, const char *bytes, bool resets) {
    send_bytes(connection, bytes, strlen(bytes));
    hang_up(connection, resets);
}

static void later(Connection *connection, int64_t delay_ns) {
    Struck *entry = must(calloc(1, sizeof *entry));
    *entry = (Struck){connection, fault_kind, requests, delay_ns < 0 ? INT64_MAX : now_ns() + delay_ns, struck};
    connection->struck++;
    struck = entry;
}

// True when the request meets the fault and nothing more is to be done for it now.
static bool strike(Connection *connection) {
    bool in_stream = fault_kind == CUT || fault_kind == BAD_CHUNK || fault_kind == GIVE_UP;
    fault_left--;
    fault_struck++;
    if (in_stream && connection->wants_stream) {
        later(connection, fault_delay_ns);
        return false;
    }
    switch (fault_kind) {
    case REFUSE: answer(connection, "503 Service Unavailable", "application/json", refused, strlen(refused)); break;
    case RESET: hang_up(connection, true); break;
    case CLOSE: hang_up(connection, false); break;
    case GARBAGE: say_and_hang_up(connection, "HTTQ/9 what?\r\n\r\n", false); break;
    case LATE:
    case HANG:
        connection->streaming = true;  // so that nothing else is served on it
        later(connection, fault_kind == HANG ? -1 : fault_delay_ns);
        break;
    case CUT:
        say_and_hang_up(connection, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{\"id\":",
                        true);
        break;
    case BAD_CHUNK:
        say_and_hang_up(connection, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
                        false);
        break;
    case GIVE_UP: answer(connection, "500 Internal Server Error", "application/json", failed, strlen(failed)); break;
    case FORGET:
        connection->keeps_blocks = false;
        return false;
    case KINDS: break;
    }
    return true;
}

static void carry_out(Struck *entry) {
    Connection *connection = entry->connection;
    if (connection->closed || !connection->streaming || connection->request != entry->request) return;
    switch (entry->kind) {
    case LATE:
        connection->streaming = false;
        respond(connection);
        if (!connection->streaming) serve_requests(connection);
        break;
    case CUT: say_and_hang_up(connection, "fff\r\ndata: {\"id\":\"chat", true); break;
    case BAD_CHUNK: say_and_hang_up(connection, "zz\r\n", false); break;
    case GIVE_UP:
        send_event(connection, failed, strlen(failed));
        send_event(connection, "[DONE]", 6);
        say_and_hang_up(connection, "0\r\n\r\n", false);
        break;
    default: hang_up(connection, true);
    }
}

// Does what is due; gives when the next is (INT64_MAX: never).
static int64_t run_faults(int64_t now) {
    int64_t next_ns = INT64_MAX;
    for (Struck **at = &struck; *at != NULL;) {
        Struck *entry = *at;
        if (entry->due_ns > now && !entry->connection->closed) {
            if (entry->due_ns < next_ns) next_ns = entry->due_ns;
            at = &entry->next;
            continue;
        }
        *at = entry->next;
        carry_out(entry);
        entry->connection->struck--;
        lay_out(entry->connection);
        free(entry);
    }
    return next_ns;
}

static long number_in(const char *line, const char *name, long otherwise) {
    const char *end = strchr(line, '\r'), *at = strstr(line, name);
    return at != NULL && at < end ? atol(at + strlen(name)) : otherwise;
}

static void order_fault(Connection *connection, const char *head) {
    const char *name = strstr(head, "kind=");
    for (int kind = 0; name != NULL && kind < KINDS; kind++) {
        size_t size = strlen(kind_names[kind]);
        if (strncmp(name + 5, kind_names[kind], size) != 0 || (name[5 + size] != '&' && name[5 + size] != ' ')) continue;
        fault_kind = kind;
        fault_left = number_in(head, "times=", 1);
        fault_delay_ns = number_in(head, "ms=", 20) * INT64_C(1000000);
        fault_struck = 0;
        answer_json(connection, "{}");
        return;
    }
    answer(connection, "400 Bad Request", "application/json", "{\"detail\":\"no such fault\"}", 26);
}

static void end_fault(Connection *connection) {
    char body[64];
    snprintf(body, sizeof body, "{\"struck\":%ld}", fault_struck);
    fault_left = 0;
    for (Struck *entry = struck; entry != NULL; entry = entry->next)
        if (entry->kind == HANG) entry->due_ns = 0;
    answer_json(connection, body);
}
