# Runs as root in a virtual machine. One bay with limits on memory, processors and processes: a command exceeds each
# limit, and the script prints what the kernel counted.
# `layout` comes from the machine's init; busybox has no pgrep.
# shellcheck shell=sh disable=SC2154,SC2009

say() { echo "@@ $*"; }
# tell NAME COMMAND…: runs the command and prints its exit code.
tell() {
  what=$1
  shift
  "$@"
  say "$what" $?
}
joined() { tr -d '\n'; }

# The groups of all bays under a controller. There is one bay at a time.
group() {
  case "$layout" in
    v2) echo /sys/fs/cgroup/workbay/*/bay_* ;;
    v1) echo /sys/fs/cgroup/"$1"/workbay/*/bay_* ;;
  esac
}
# field FILE NAME: the number beside a name, in files of such lines.
field() { sed -n "s/^$2 //p" "$1"; }
cpu_used_us() {
  case "$layout" in
    v2) field "$(group cpu)/cpu.stat" usage_usec ;;
    v1) echo $(($(cat "$(group cpuacct)/cpuacct.usage") / 1000)) ;;
  esac
}
now_cs() { sed 's/ .*//; s/\.//' /proc/uptime; }
# eventually COMMAND…: until it succeeds, within some 20 s.
eventually() {
  tries=0
  until "$@"; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || return 1
    sleep 0.1
  done
}
state_of() { bay show "$1" --json | joined; }

say kernel "$(uname -r)"
say doctor-before "$(bay doctor --json | joined)"
mkdir /project
echo hello >/project/README
bay images import dir:/image --name small || say import-failed $?
tell up bay up /project --name limited --image small --memory-mib 64 --cpus 0.5 --pids 40

# Memory: a command that fits succeeds, one that does not is killed, and the bay keeps running.
tell memory-below bay exec -n limited -- dd if=/dev/zero of=/dev/null bs=16M count=1
tell memory-above bay exec -n limited -- dd if=/dev/zero of=/dev/null bs=128M count=1
case "$layout" in
  v2) say oom-kills "$(field "$(group memory)/memory.events" oom_kill)" ;;
  v1) say oom-kills "$(field "$(group memory)/memory.oom_control" oom_kill)" ;;
esac
tell after-memory bay exec -n limited -- true

# Processes: a loop that keeps forking is refused at the limit, and `bay kill` ends all of its processes.
# shellcheck disable=SC2016 # counted in the bay
forks='for i in $(seq 60); do sleep 6666 >/dev/null 2>&1 & done'
exec_id=$(bay exec -d limited -- sh -c "($forks); exec sleep 6666")
# Kernels differ in where they count: at the group that forked, or at the one whose limit it was.
refusals() { find "$(group pids)" -name pids.events -exec cat {} + | awk '{ all += $2 } END { print all }'; }
refused() { [ "$(refusals)" -gt 0 ]; }
eventually refused
say pids-refused "$(refusals)"
say pids-used "$(cat "$(group pids)/pids.current")"
tell pids-kill bay kill limited "$exec_id"
count() { ps -o args | grep -c "^$1"; }
running() { [ "$(count "$1")" = "$2" ]; }
eventually running 'sleep 6666' 0
say pids-left "$(count 'sleep 6666')"

# A tree whose children have left their session and their parents is still one tree.
daemons='setsid sh -c "setsid sleep 7777 & exec sleep 7777" </dev/null >/dev/null 2>&1 & (setsid sleep 7777 &) ; exec sleep 7777'
exec_id=$(bay exec -d limited -- sh -c "$daemons")
eventually running 'sleep 7777' 4
say tree-before "$(count 'sleep 7777')"
tell tree-kill bay kill limited "$exec_id"
eventually running 'sleep 7777' 0
say tree-left "$(count 'sleep 7777')"

# Processors: two loops want two of them and get half of one.
loop='timeout 2 sh -c "while :; do :; done"'
used=$(cpu_used_us) began=$(now_cs)
bay exec -n limited -- sh -c "$loop & $loop; wait"
say cpu-permille $((($(cpu_used_us) - used) / (10 * ($(now_cs) - began))))
say cpu-throttled "$(field "$(group cpu)/cpu.stat" nr_throttled)"

# Paused: nothing runs, a new daemon reports it as paused, and after `resume` it continues.
bay exec -d limited -- sh -c 'while :; do :; done'
tell pause bay pause limited
used=$(cpu_used_us)
sleep 1
say paused-used $(($(cpu_used_us) - used))
say paused "$(state_of limited)"
daemon=$(ps -o pid,args | sed -n 's/^ *\([0-9]*\) [^ ]*bay serve.*/\1/p' | head -n 1)
kill -9 "$daemon"
gone() { ! kill -0 "$1" 2>/dev/null; }
eventually gone "$daemon"
say paused-after-restart "$(state_of limited)"
tell resume bay resume limited
used=$(cpu_used_us)
goes_on() { [ "$(cpu_used_us)" -gt "$used" ]; }
tell resumed eventually goes_on
tell after-resume bay exec -n limited -- true

# Another daemon beside the first, on the same pool.
tell stop bay stop limited
groups_left() { find /sys/fs/cgroup /run/workbay -mindepth 1 -type d \( -name workbay -o -name 'bay_*' \) 2>/dev/null | wc -l; }
say groups-stopped "$(groups_left)"
second='--data-dir /second --pool /var/lib/workbay/pool'
# shellcheck disable=SC2086 # options are words
{
  tell second-up bay $second up /project --name other --image small --memory-mib 64
  tell second-exec bay $second exec -n other -- true
  tell second-rm bay $second rm --yes other
}
tell rm bay rm --yes limited
say groups-left "$(groups_left)"
say processes-left "$(grep -l /workbay/ /proc/[0-9]*/cgroup 2>/dev/null | wc -l)"
say v2-mounts "$(grep -c ' cgroup2 ' /proc/mounts)"
say v2-mount "$(sed -n 's/^[^ ]* \([^ ]*\) cgroup2 .*/\1/p' /proc/mounts)"
say doctor-after "$(bay doctor --json | joined)"
