# What the management library's answers are made of.
management := account own_process members management_container management_memory management_processes management_utilization
