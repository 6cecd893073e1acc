/* Mutexes that a child of fork can use, whichever thread held them at that moment. `in_child` is called in the child, with the mutex held. */
#ifndef ISOLATION_PROCESS_FORK_MUTEX_H
#define ISOLATION_PROCESS_FORK_MUTEX_H

#include <pthread.h>

#define MUTEX_ACROSS_FORK(mutex, in_child)                                                                 \
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;                                              \
    static void mutex##_before_fork(void) { pthread_mutex_lock(&mutex); }                                  \
    static void mutex##_in_parent(void) { pthread_mutex_unlock(&mutex); }                                  \
    static void mutex##_in_child(void)                                                                     \
    {                                                                                                      \
        in_child();                                                                                        \
        pthread_mutex_unlock(&mutex);                                                                      \
    }                                                                                                      \
    __attribute__((constructor)) static void mutex##_watch_forks(void)                                     \
    {                                                                                                      \
        pthread_atfork(mutex##_before_fork, mutex##_in_parent, mutex##_in_child);                          \
    }

/* The same for a mutex that is held while the driver is called: fork does not wait for it, since the driver has mutexes of its own that
 * fork may take first. What it guards is reset in the child, by `in_child`. */
#define MUTEX_FRESH_IN_CHILD(mutex, in_child)                                                              \
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;                                              \
    static void mutex##_in_child(void)                                                                     \
    {                                                                                                      \
        pthread_mutex_init(&mutex, NULL);                                                                  \
        in_child();                                                                                        \
    }                                                                                                      \
    __attribute__((constructor)) static void mutex##_watch_forks(void)                                     \
    {                                                                                                      \
        pthread_atfork(NULL, NULL, mutex##_in_child);                                                      \
    }

#endif
