/* Numbers of threads that have a default stream of their own. */
#include <pthread.h>
#include <stdlib.h>

#include "cuda/stream/streams.h"

struct number {
    struct number *next;
    uint64_t value;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static struct number *unused;
static uint64_t last;

/* A thread ends. */
static void give_back(void *value)
{
    struct number *number = value;
    pthread_mutex_lock(&mutex);
    number->next = unused;
    unused = number;
    pthread_mutex_unlock(&mutex);
}

static void make_key(void)
{
    pthread_key_create(&key, give_back);
}

uint64_t thread_number(void)
{
    static _Thread_local uint64_t own;
    if (own)
        return own;
    pthread_once(&once, make_key);
    pthread_mutex_lock(&mutex);
    struct number *number = unused;
    if (number)
        unused = number->next;
    else if ((number = malloc(sizeof *number)))
        number->value = ++last;
    pthread_mutex_unlock(&mutex);
    if (number && !pthread_setspecific(key, number))
        own = number->value;
    return own;
}
