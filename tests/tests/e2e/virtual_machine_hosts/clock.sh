# Runs as root in a virtual machine, whose clock is nobody else's. It is set hours ahead and then hours back, while a bay
# has a command with a timeout, a lease, a service that keeps failing, and is to be stopped when idle for an hour.
# shellcheck shell=sh

say() { echo "@@ $*"; }
tell() {
  what=$1
  shift
  "$@"
  say "$what" $?
}
joined() { tr -d '\n'; }
# Hundredths of a second since boot, which nobody sets.
up_cs() { sed 's/ .*//; s/\.//' /proc/uptime; }
# eventually COMMAND…: until it succeeds, within 20 s.
eventually() {
  end=$(($(up_cs) + 2000))
  until "$@"; do
    [ "$(up_cs)" -lt $end ] || return 1
    sleep 0.1
  done
}
# The value of a field, of JSON on one line.
field() { sed "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/"; }
set_clock() { date -s "@$(($(date +%s) + $1))" >/dev/null; }
restarts() { bay services show web failing --json | joined | field restarts; }
# Seconds that the lease has left by the clock as it goes now.
lease_left() {
  until=$(bay exec -n web -- bay-ctl can --json | joined | field hold_until | sed 's/T/ /; s/[.Z].*//')
  echo $(($(date -u -d "$until" +%s) - $(date +%s)))
}
failed_again() { [ "$(restarts)" -gt "$failures" ]; }

# What is asked after each change of the clock.
look() {
  say "clock-$1" "$(date +%s)"
  tell "exec-$1" bay exec -n web -- true
  began=$(up_cs)
  tell "timeout-$1" bay exec -n web --timeout 1 -- sleep 600
  say "timeout-took-$1" $(($(up_cs) - began))
  say "lease-$1" "$(lease_left)"
  # Asked for anew it begins with the shortest wait again; what is looked at is that each wait comes to its end.
  bay services restart web failing --no-wait
  failures=$(restarts)
  tell "failing-$1" eventually failed_again
  say "bay-$1" "$(bay show web --json | joined)"
}

mkdir /project
echo hello >/project/README
bay images import dir:/image --name small || say import-failed $?
tell up bay up /project --name web --image small --idle-stop 1h
patient=$(bay exec -d web --timeout 600 -- sh -c 'until [ -e /tmp/go ]; do sleep 0.1; done; exit 7')
tell service bay services add web steady -- sleep 6001
bay services add web failing --no-wait -- sh -c 'sleep 0.2; exit 1'
tell hold bay exec -n web -- bay-ctl hold 30m
look before
set_clock 18000
look ahead
set_clock -36000
look back

# A daemon that is started in a time before all of this knows the bay as it is.
daemon=$(ps -o pid,args | sed -n 's/^ *\([0-9]*\) [^ ]*bay serve.*/\1/p' | head -n 1)
kill -9 "$daemon"
tell restarted bay ls
say bay-restarted "$(bay show web --json | joined)"
tell go bay exec -n web -- touch /tmp/go
over() { bay execs show web "$patient" --json | grep -q ended_at; }
eventually over
say patient "$(bay execs show web "$patient" --json | joined)"
say steady "$(bay services show web steady --json | joined)"
tell rm bay rm web --yes
