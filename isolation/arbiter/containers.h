/* The containers of the node: a folder each, in which the node agent puts their limits and their usage file. */
#ifndef ISOLATION_ARBITER_CONTAINERS_H
#define ISOLATION_ARBITER_CONTAINERS_H

#include <stdbool.h>

/* Opens the folder that holds those folders and waits until no other arbiter has it. False: `message` says why not. */
bool containers_open(const char *path, char message[512]);

/* Admits the containers that came, dismisses those that went, and heeds limits that changed. */
void containers_scan(void);

/* Sleeps until something may have changed, `most_ms` at most. */
void containers_wait(int most_ms);

#endif
