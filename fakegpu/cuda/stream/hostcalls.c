/* The thread that runs the program's host functions, one after another. They may take as long as they like. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "cuda/stream/executor.h"

struct call {
    struct call *next;
    void (*call)(void *);
    void *argument;
    void (*returned)(void *);
    void *stream;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static struct call *first, *last;
static bool running;

static void *run(void *unused)
{
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&mutex);
        while (!first)
            pthread_cond_wait(&filled, &mutex);
        struct call *call = first;
        first = call->next;
        pthread_mutex_unlock(&mutex);
        call->call(call->argument);
        call->returned(call->stream);
        free(call);
    }
    return NULL;
}

/* Under lock. */
static bool start(void)
{
    pthread_t thread;
    sigset_t all, before;
    if (running)
        return true;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    running = !pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (running)
        pthread_detach(thread);
    return running;
}

bool hostcall(void (*function)(void *), void *argument, void (*returned)(void *), void *stream)
{
    struct call *call = malloc(sizeof *call);
    if (!call)
        return false;
    *call = (struct call){NULL, function, argument, returned, stream};
    pthread_mutex_lock(&mutex);
    bool started = start();
    if (started) {
        if (first)
            last->next = call;
        else
            first = call;
        last = call;
        pthread_cond_signal(&filled);
    }
    pthread_mutex_unlock(&mutex);
    if (!started)
        free(call);
    return started;
}
