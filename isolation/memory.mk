# What the memory limit is made of. The order is that of mutexes: of two files, the one whose mutex is taken while the other one's is
# held comes first, since fork takes them from the last one to the first. What counts comes before the compute limit, the hooks, which
# tell that of contexts that end, after it.
memory := account own_process members tags shared measure beyond charge holdings gpus proc_address reserved
memory_hooks := hook_linear hook_physical hook_shared hook_arrays hook_graph_memory hook_pools hook_contexts hook_green hook_unasked hook_waits hook_tell
