#!/bin/sh
# Makes a machine of new namespaces: a root of its own over this machine's files, its own /dev, /run, /proc, /sys.
# Nothing in it outlives its process 1. In: NAME, FOLDER (state of the machine), SHARED (state of the cluster),
# BINARIES, INIT, CGROUPS ("NAME KIND OPTIONS" lines). Says "ready" and becomes process 1.
set -eu
mount --make-rprivate /
hostname "$NAME"
ip link set lo up

R=$FOLDER/root
mkdir -p "$R" "$FOLDER/changes"
mount -t tmpfs -o mode=755 changes "$FOLDER/changes"
mkdir "$FOLDER/changes/upper" "$FOLDER/changes/work"
mount -t overlay -o "lowerdir=/,upperdir=$FOLDER/changes/upper,workdir=$FOLDER/changes/work" root "$R"

mount -t proc proc "$R/proc"
mount -t sysfs sysfs "$R/sys"
# containerd confines containers by AppArmor or SELinux where it finds them.
[ ! -e /sys/fs/selinux/enforce ] || mount -t selinuxfs selinux "$R/sys/fs/selinux"
[ ! -d /sys/kernel/security/apparmor ] || mount -t securityfs securityfs "$R/sys/kernel/security"
for place in run tmp dev; do
    mkdir -p "$R/$place"
    mount -t tmpfs -o mode=755 "$place" "$R/$place"
done
chmod 1777 "$R/tmp"
mkdir -p "$R/run/lock" "$R/dev/pts" "$R/dev/shm" "$R/dev/mqueue" "$R/var"
[ -e "$R/var/run" ] || ln -s /run "$R/var/run"

while read -r file major minor; do
    mknod -m 666 "$R/dev/$file" c "$major" "$minor"
done <<DEVICES
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
kmsg 1 11
tty 5 0
DEVICES
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$R/dev/pts"
mount -t tmpfs -o mode=1777 shm "$R/dev/shm"
mount -t mqueue mqueue "$R/dev/mqueue"
ln -s pts/ptmx "$R/dev/ptmx"
for link in fd stdin:0 stdout:1 stderr:2; do
    case $link in
        fd) ln -s /proc/self/fd "$R/dev/fd" ;;
        *) ln -s "/proc/self/fd/${link#*:}" "$R/dev/${link%:*}" ;;
    esac
done

# Hide what this machine's own Kubernetes or containerd may have there.
for place in etc/cni etc/cdi etc/containerd etc/kubernetes var/lib/cni opt/cni; do
    mkdir -p "$R/$place"
    mount -t tmpfs -o mode=755 private "$R/$place"
done
# On disk, for images and volumes are large and overlayfs wants no overlayfs below it.
for place in var/lib/kubelet var/lib/containerd var/lib/rancher var/snap var/lib/etcd var/log; do
    mkdir -p "$R/$place" "$FOLDER/disk/$place"
    mount --bind "$FOLDER/disk/$place" "$R/$place"
done
for place in "$SHARED" "$BINARIES"; do
    mkdir -p "$R$place"
    mount --bind "$place" "$R$place"
done

cgroup() {
    mkdir -p "$R/sys/fs/cgroup/$1"
    if [ "$2" = cgroup2 ]; then
        mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup/$1"
    else
        mount -t cgroup -o "$3" cgroup "$R/sys/fs/cgroup/$1"
    fi
}
case $CGROUPS in
    "- cgroup2"*)
        cgroup . cgroup2 -
        mkdir "$R/sys/fs/cgroup/system"
        echo $$ >"$R/sys/fs/cgroup/system/cgroup.procs"
        ;;
    *)
        mount -t tmpfs -o mode=755 cgroup "$R/sys/fs/cgroup"
        echo "$CGROUPS" | while read -r name kind options; do
            cgroup "$name" "$kind" "$options"
        done
        ;;
esac

# The kubelet sets these for the whole kernel unless they are so already; it shall believe that they are.
mkdir "$R/run/sysctl"
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    name=${setting%=*}
    [ -e "$R/proc/sys/$name" ] || continue
    file=$R/run/sysctl/$(echo "$name" | tr / .)
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "$R/proc/sys/$name"
done
for setting in net/ipv4/ip_forward net/bridge/bridge-nf-call-iptables; do
    [ ! -e "$R/proc/sys/$setting" ] || echo 1 >"$R/proc/sys/$setting"
done
echo "127.0.0.1 localhost $NAME" >"$R/etc/hosts"
echo "$NAME" >"$R/etc/hostname"
: >"$R/etc/resolv.conf"

mkdir "$R/.before"
cd "$R"
pivot_root . .before
exec chroot . /bin/sh -c 'umount -l /.before && rmdir /.before && mount --make-rshared / && echo ready && exec "$0" >/dev/null' "$INIT" </dev/null
