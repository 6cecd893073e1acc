/* One GPU: its schedule, the pages of the containers that share it, and the threads that listen to them. */
#ifndef ISOLATION_ARBITER_GPU_H
#define ISOLATION_ARBITER_GPU_H

#include "arbiter/schedule.h"
#include "files/turn.h"

/* A container on a GPU. Its memory is the arbiter's own; `page` is the container's. */
struct guest;

/* A container gets a place at the GPU `uuid`, which is made when it is the first. `name` is for messages. Takes the page, and
 * unmaps it (page_unmap) once nothing listens to it any more. NULL: no place is left; the page is the caller's still. */
struct guest *gpu_admit(const char *uuid, const char *name, struct turn_page *page, struct share share);

/* It is not spoken to again. The guest is no longer valid, here or for gpu_guest_lives. */
void gpu_dismiss(struct guest *guest);

/* Whether its page can still be read; once not, it is as good as dismissed. */
bool gpu_guest_lives(const struct guest *guest);

/* Announces to every container that the arbiter ends. */
void gpus_leave(void);

#endif
