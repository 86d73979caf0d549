/* A host that replays another one's output at the same pace, with almost no CPU time: for measuring a laptop with many hosts
   on a machine with few cores.

     cc -O2 -o replayed_host replayed_host.c
     ./replayed_host RECORD        reports that it is ready, reads one request, and writes the record's lines

   RECORD: the first line has the microseconds from the start until the host was ready for a request; each other line has the
   microseconds after the request, a blank, and the output. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINE_BYTES = 1 << 20 };

static long long now_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000LL + at.tv_nsec / 1000;
}

static void until(long long at_us) {
    struct timespec at = {at_us / 1000000, at_us % 1000000 * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL)) continue;
}

int main(int count, char **words) {
    static char line[LINE_BYTES], request[LINE_BYTES];
    long long began_us = now_us();
    FILE *record = count == 2 ? fopen(words[1], "r") : NULL;
    if (!record || !fgets(line, sizeof line, record)) return 2;
    until(began_us + atoll(line));
    puts("\n{\"event\": \"ready\"}");
    fflush(stdout);
    if (!fgets(request, sizeof request, stdin)) return 1;
    long long asked_us = now_us();
    while (fgets(line, sizeof line, record)) {
        char *said;
        until(asked_us + strtoll(line, &said, 10));
        fputs(said + 1, stdout);
        fflush(stdout);
    }
    return 0;
}
