#!/bin/sh
# /init of the virtual machine: mounts the host's files read-only, with a disk over them for what is written, and continues there.
# In, from the kernel's command line: gpushare.modules (the host's folder with the kernel's modules) and security (its security module).
export PATH=/bin
busybox mkdir -p /proc /dev /lower /disk /root
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
for module in $(busybox cat /modules); do
    busybox insmod "/$module" || echo "virtual: no $module"
done
for word in $(busybox cat /proc/cmdline); do
    case $word in
        gpushare.modules=*) modules=${word#*=} ;;
        security=*) security=${word#*=} ;;
    esac
done
options=trans=virtio,version=9p2000.L,msize=512000
busybox mount -t 9p -o "ro,cache=loose,$options" root /lower
labels=defaults
if [ "$security" = selinux ]; then
    # Debian's policy, with container.cil; the host's files have no labels, and count as libraries, which containers may read.
    busybox mkdir -p /sys
    busybox mount -t sysfs sys /sys
    busybox mount -t selinuxfs selinux /sys/fs/selinux
    busybox dd if="$(busybox ls /lower/etc/selinux/default/policy/policy.* | busybox tail -n 1)" of=/sys/fs/selinux/load bs=64M iflag=fullblock
    busybox umount /lower
    busybox mount -t 9p -o "ro,cache=loose,$options,context=system_u:object_r:lib_t:s0" root /lower
    labels=defcontext=system_u:object_r:lib_t:s0 shared=,context=system_u:object_r:tmp_t:s0
fi
busybox mount -t ext4 -o "$labels" /dev/vda /disk
busybox mkdir -p /disk/upper /disk/work /disk/tmp
busybox mount -t overlay -o "lowerdir=/lower,upperdir=/disk/upper,workdir=/disk/work" root /root
busybox mkdir -p /root/lib/modules /root/var/tmp /root/run/virtual
# Overlays stack twice, and a node of the test cluster is one: what it writes must be on the disk itself.
busybox mount --bind /disk/tmp /root/var/tmp
busybox mount --bind "/lower$modules" /root/lib/modules
busybox mount -t proc proc /root/proc
busybox mount -t sysfs sys /root/sys
busybox mount -t devtmpfs dev /root/dev
busybox mount -t tmpfs run /root/run
busybox mkdir /root/run/virtual
busybox mount -t 9p -o "rw,$options$shared" shared /root/run/virtual
exec busybox switch_root /root /bin/sh /run/virtual/guest.sh
