"""A virtual machine over this machine's files, with Debian's kernel: cgroup version 2 and AppArmor, which this kernel may lack."""
