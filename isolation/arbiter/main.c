/* The node's arbiter: whose turn it is on each GPU.
 *
 *     arbiter --containers DIR      DIR/<container>/{limits,usage}; runs until SIGTERM
 *
 * It keeps nothing: after a restart it goes on with what the containers' pages say. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "arbiter/containers.h"
#include "arbiter/gpu.h"
#include "arbiter/page.h"

enum { SCAN_MS = 2000 };

/* Tells the containers that no arbiter grants turns now, so that they need not find out by waiting. */
static void *end_in_order(void *signals)
{
    int number;
    while (sigwait(signals, &number))
        continue;
    gpus_leave();
    _exit(0);
}

static void watch_for_the_end(void)
{
    static sigset_t signals;
    pthread_t thread;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    pthread_create(&thread, NULL, end_in_order, &signals);
}

int main(int count, char **words)
{
    char message[512];
    if (count != 3 || strcmp(words[1], "--containers")) {
        fprintf(stderr, "usage: arbiter --containers DIR\n");
        return 2;
    }
    page_guard();
    watch_for_the_end();
    setpriority(PRIO_PROCESS, 0, -15); /* a late arbiter is idle time of a GPU; if it may not, so be it */
    if (!containers_open(words[2], message)) {
        fprintf(stderr, "arbiter: %s\n", message);
        return 1;
    }
    fprintf(stderr, "arbiter: %s: at work\n", words[2]);
    for (;;) {
        containers_scan();
        containers_wait(SCAN_MS);
    }
}
