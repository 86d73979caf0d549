/* A server with an exact schedule and a record of it: it stores when it received a request and when it sent each chunk.

     cc -O2 -o exact_server exact_server.c
     ./exact_server FIRST_US GAP_US CHUNKS TOKENS_A_CHUNK STALL_AT STALL_US        prints its port; GET /record returns the record

   A stream ends at the request's max_tokens or max_completion_tokens, at the latest after CHUNKS. As with vLLM, the role comes
   right before the first token, the last chunk has only the usage, and every chunk has it if the request asks for
   continuous_usage_stats. Each chunk has the time at which it was sent (sent_ns). GET /v1/models and /health are answered, too.

   One thread, epoll, CLOCK_MONOTONIC (which Python's perf_counter reads): a chunk costs a few microseconds, so that measurements
   show the client's cost. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { STREAMS = 1 << 14, CHUNKS = 4096, REQUEST_BYTES = 1 << 16 };

typedef struct {
    int fd, length, sent, streaming, waiting, counts, chunks;
    double received_s, due_s;
    char request[REQUEST_BYTES];
} Stream;

static Stream *streams[STREAMS];
static int count, first_us, gap_us, chunks, per_chunk, stall_at, stall_us;
static double received_s[STREAMS], *sent_s[STREAMS];
static int recorded;

static double now_s(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static void send_all(int fd, const char *data, int size) {
    while (size > 0) {
        int done = write(fd, data, size);
        if (done <= 0) return;
        data += done, size -= done;
    }
}

static void chunk(int fd, const char *event) {
    char data[1024];
    int size = snprintf(data, sizeof data, "%zx\r\n%s\r\n", strlen(event), event);
    send_all(fd, data, size);
}

static void begin(Stream *one) {
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    send_all(one->fd, head, sizeof head - 1);
    const char *limit = strstr(one->request, "_tokens\":");
    int asked = limit ? (atoi(limit + 9) + per_chunk - 1) / per_chunk : chunks;
    one->chunks = asked > 0 && asked < chunks ? asked : chunks;
    one->counts = strstr(one->request, "continuous_usage_stats") != NULL;
    one->sent = one->waiting = 0, one->streaming = 1, one->due_s = one->received_s + first_us * 1e-6;
    one->length = recorded++;                                          /* from here on: index of its record */
    received_s[one->length] = one->received_s;
    sent_s[one->length] = calloc(CHUNKS, sizeof(double));
}

static void event(Stream *one, const char *choices, int tokens) {
    static const char head[] = "data: {\"id\":\"chatcmpl-9f8684af220d046d\",\"object\":\"chat.completion.chunk\","
                               "\"created\":1795219194,\"model\":\"m\",\"sent_ns\":%lld,\"choices\":";
    char text[600], usage[100] = "";
    if (one->counts || !strcmp(choices, "[]"))
        snprintf(usage, sizeof usage, ",\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%d,\"total_tokens\":%d}", tokens, 9 + tokens);
    int size = snprintf(text, sizeof text, head, (long long)(now_s() * 1e9));
    snprintf(text + size, sizeof text - size, "%s%s}\n\n", choices, usage);
    chunk(one->fd, text);
}

static void next(Stream *one) {
    int tokens = ++one->sent * per_chunk, last = one->sent == one->chunks;
    sent_s[one->length][one->sent - 1] = now_s();
    if (one->sent == 1)
        event(one, "[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]", 0);
    event(one, last ? "[{\"index\":0,\"delta\":{\"content\":\"word \"},\"logprobs\":null,\"finish_reason\":\"length\"}]"
                    : "[{\"index\":0,\"delta\":{\"content\":\"word \"},\"logprobs\":null,\"finish_reason\":null}]", tokens);
    one->due_s += gap_us * 1e-6 + (one->sent == stall_at ? stall_us * 1e-6 : 0);
    if (!last) return;
    event(one, "[]", tokens);
    chunk(one->fd, "data: [DONE]\n\n");
    send_all(one->fd, "0\r\n\r\n", 5);
    one->streaming = one->length = 0;
}

static void answer(int fd, const char *status, const char *body) {
    dprintf(fd, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", status, strlen(body), body);
}

static void tell(int fd) {
    char *body = malloc(64 + (size_t)recorded * (chunks + 1) * 40), *end = body;
    end += sprintf(end, "[");
    for (int n = 0; n < recorded; n++) {
        end += sprintf(end, "%s[%.9f,[", n ? "," : "", received_s[n]);
        for (int k = 0; k < chunks && sent_s[n][k] > 0; k++)
            end += sprintf(end, "%s[%.9f,%d]", k ? "," : "", sent_s[n][k], (k + 1) * per_chunk);
        end += sprintf(end, "]]");
    }
    end += sprintf(end, "]");
    dprintf(fd, "HTTP/1.1 200 OK\r\ncontent-length: %ld\r\n\r\n", (long)(end - body));
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    send_all(fd, body, end - body);
    free(body);
}

static int readable(Stream *one) {
    double at_s = now_s();
    char rest[4096];
    if (one->streaming) return read(one->fd, rest, sizeof rest);       /* the client closed, or sends too much */
    int got = read(one->fd, one->request + one->length, REQUEST_BYTES - one->length - 1);
    if (got <= 0) return got;
    one->length += got, one->request[one->length] = 0;
    char *end = strstr(one->request, "\r\n\r\n"), *size = strcasestr(one->request, "content-length:");
    if (!end || one->length < end + 4 - one->request + (size && size < end ? atoi(size + 15) : 0)) return 1;
    one->received_s = at_s, one->length = 0;
    if (!strncmp(one->request, "POST /v1/chat/completions ", 26) || !strncmp(one->request, "POST /v1/messages ", 18)) one->waiting = 1;
    else if (!strncmp(one->request, "GET /record ", 12)) tell(one->fd);
    else if (!strncmp(one->request, "GET /health ", 12)) answer(one->fd, "200 OK", "{}");
    else if (!strncmp(one->request, "GET /v1/models ", 15))
        answer(one->fd, "200 OK", "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"owned_by\":\"exact\"}]}");
    else answer(one->fd, "404 Not Found", "{}");
    return 1;
}

int main(int given, char **words) {
    if (given < 7) return 2;
    signal(SIGPIPE, SIG_IGN);                                            /* a health check closes the connection early */
    first_us = atoi(words[1]), gap_us = atoi(words[2]), chunks = atoi(words[3]), per_chunk = atoi(words[4]);
    stall_at = atoi(words[5]), stall_us = atoi(words[6]);
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof where;
    int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0), on = 1;
    bind(listener, (struct sockaddr *)&where, size), listen(listener, 1024);
    getsockname(listener, (struct sockaddr *)&where, &size);
    printf("%d\n", ntohs(where.sin_port)), fflush(stdout);
    struct epoll_event arrival = {.events = EPOLLIN, .data.ptr = NULL}, events[256];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &arrival);
    for (;;) {
        double due_s = 1e18, at_s = now_s();
        Stream *waits = NULL;
        for (int n = 0; n < count; n++) {
            if (streams[n]->waiting) waits = streams[n], due_s = 0;
            if (streams[n]->streaming && streams[n]->due_s < due_s) due_s = streams[n]->due_s;
        }
        double wait_s = due_s > at_s ? due_s - at_s : 0;
        struct timespec wait = {(time_t)wait_s, (long)((wait_s - (time_t)wait_s) * 1e9)};
        int ready = epoll_pwait2(epoll, events, 256, due_s > 1e17 ? NULL : &wait, NULL);
        if (!ready && waits) begin(waits);                               /* answers come later: the time of receipt must be exact */
        for (int n = 0; n < ready; n++) {
            Stream *one = events[n].data.ptr;
            if (!one) {
                one = calloc(1, sizeof(Stream));
                one->fd = accept(listener, NULL, NULL);
                setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                arrival.data.ptr = streams[count++] = one;
                epoll_ctl(epoll, EPOLL_CTL_ADD, one->fd, &arrival);
            } else if (readable(one) <= 0) {
                close(one->fd);
                for (int k = 0; k < count; k++)
                    if (streams[k] == one) streams[k] = streams[--count];
                free(one);
            }
        }
        for (int n = 0; n < count; n++)
            if (streams[n]->streaming && streams[n]->due_s <= now_s()) next(streams[n]);
    }
}
