#!/bin/sh
# Process 1 of the virtual machine: the rest of its mounts, then the command of /run/virtual/command, whose exit status it leaves.
export LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
mkdir -p /dev/pts /dev/shm
mount -t devpts -o ptmxmode=0666,mode=620 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=1777 tmp /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
if [ -d /sys/fs/selinux ]; then
    mount -t selinuxfs selinux /sys/fs/selinux
    printf 'SELINUX=enforcing\nSELINUXTYPE=default\n' >/etc/selinux/config
    echo 1 >/sys/fs/selinux/enforce
fi
[ ! -d /sys/kernel/security ] || mount -t securityfs securityfs /sys/kernel/security
ip link set lo up
echo 1024 >/proc/sys/fs/inotify/max_user_instances
hostname virtual
sh /run/virtual/command </dev/null
echo $? >/run/virtual/status
sync
echo o >/proc/sysrq-trigger
while :; do :; done # a program could no longer be read
