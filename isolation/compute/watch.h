/* A thread of ours that looks at marks while the program itself submits no work: so that the end of a turn's work is seen, and that of
 * work which takes longer than predicted is reported. */
#ifndef ISOLATION_COMPUTE_WATCH_H
#define ISOLATION_COMPUTE_WATCH_H

/* Marks lie ahead. The first call starts the thread. */
void flow_watch(void);

#endif
