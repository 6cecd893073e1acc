/* Which cgroups (version 2) there are, and which this process is in: what a limit of memory is set on.
 *
 * A cgroup is identified by its directory, not by its path: a container may see its own as the root of all, where the node has a
 * long path for it. So it is known by the directory's inode number and birth, which are the same for both.
 * (The kernel never gives the number of a cgroup again; other file systems, which tests have, do.) */
#ifndef FAKEGPU_NODE_CGROUPS_H
#define FAKEGPU_NODE_CGROUPS_H

#include <stdint.h>

enum { CGROUPS_DEEP = 16 }; /* levels that are known of a process, from its own cgroup upwards */

/* What identifies a directory, 0 if there is none. */
uint64_t cgroup_id(const char *path);

/* The cgroups that this process is in: its own, the one above it, up to `root`, which shows all that the process can see of
 * them; 0 after the last one. `proc` is where the kernel describes processes: PROC/self/cgroup, or where it is not the kernel's
 * own, PROC/<pid>/cgroup; or a file that says it of all that read it. None, where it names no cgroup of version 2, or of one that lies outside of `root`. */
void cgroups_of_process(const char *root, const char *proc, uint64_t ids[CGROUPS_DEEP]);

#endif
