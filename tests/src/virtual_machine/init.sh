#!/bin/sh
# PID 1 of a test's virtual machine: makes it a host of the wanted kind, runs the test's script, ends the machine.
# The kernel hands `layout` over from its command line.
# shellcheck disable=SC2154
export PATH=/bin:/usr/bin:/usr/sbin HOME=/root

if [ ! -e /new ]; then
  # The root that the kernel unpacked cannot be pivoted away from, so no bay could leave it: move to one that can.
  mkdir /new
  mount -t tmpfs -o size=90% root /new
  for part in /*; do
    [ "$part" = /new ] || cp -a "$part" /new/
  done
  mkdir /new/new
  exec switch_root /new /init
fi

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec </dev/console >/dev/console 2>&1
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs run /run
hostname machine
ip link set lo up
while read -r module; do
  modprobe "$module" || echo "no module $module"
done </modules

case "$layout" in
  v2)
    mount -t cgroup2 -o nosuid,nodev,noexec,nsdelegate cgroup2 /sys/fs/cgroup
    # As service managers have it: nothing runs in the root group.
    mkdir /sys/fs/cgroup/init.scope
    echo 1 >/sys/fs/cgroup/init.scope/cgroup.procs
    ;;
  v1)
    mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
    for controllers in cpu,cpuacct memory pids freezer cpuset blkio devices; do
      mkdir /sys/fs/cgroup/$controllers
      mount -t cgroup -o nosuid,nodev,noexec,$controllers cgroup /sys/fs/cgroup/$controllers
    done
    ln -s cpu,cpuacct /sys/fs/cgroup/cpu
    ln -s cpu,cpuacct /sys/fs/cgroup/cpuacct
    ;;
esac

# A disk that is btrfs already: the pool then needs no file with reserved space, which here would be memory.
truncate -s 4G /disk
mkfs.btrfs --quiet /disk
losetup /dev/loop0 /disk
mkdir -p /var/lib/workbay
mount -t btrfs /dev/loop0 /var/lib/workbay

# Through a pipe: no program shall take the console for a person's terminal.
{ sh /script; echo "@@ ended $?"; } 2>&1 | cat
sync
reboot -f
