# PostgreSQL on localhost:5432 and in /run/postgresql. The superusers postgres and root need no password.
set -eu
for at in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/libexec/postgresql* /usr/local/pgsql/bin /usr/local/bin /usr/bin; do
  if [ -x "$at/postgres" ] && [ -x "$at/initdb" ]; then bin=$at; fi
done
if [ -z "${bin:-}" ]; then
  echo "PostgreSQL is not installed in this bay: install it, for example with apt-get install -y postgresql" >&2
  exit 127
fi
data=${PGDATA:-/var/lib/postgresql/bay}
user=postgres
# PostgreSQL refuses to run as root. Packages make this user; an image without the package may lack it.
if ! grep -q "^$user:" /etc/passwd; then
  echo "$user:x:70:" >> /etc/group
  echo "$user:*:70:70:PostgreSQL:/var/lib/postgresql:/bin/sh" >> /etc/passwd
fi
mkdir -p /run/postgresql "$(dirname "$data")"
[ -e /var/run ] || ln -s ../run /var/run
chown "$user:" /run/postgresql
as_user() {
  if setpriv --help 2>&1 | grep -q reuid; then
    exec setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups -- /bin/sh -c "$1"
  fi
  exec su -s /bin/sh -c "$1" "$user"
}
cd /
settings="-D '$data' -k /run/postgresql -c listen_addresses=localhost -c timezone=GMT -c log_timezone=GMT"
if [ ! -s "$data/PG_VERSION" ]; then
  # Made under another name: after an interruption nothing that is half made looks like a database.
  new=$data.workbay-new
  rm -rf "$new"
  mkdir "$new"
  chown "$user:" "$new"
  (as_user "'$bin/initdb' -D '$new' -U postgres -A trust -E UTF8 --no-locale")
  (as_user "echo 'create role root superuser login' | '$bin/postgres' --single -D '$new' -c timezone=GMT -c log_timezone=GMT postgres")
  # A directory that holds anything else stays, and the next line says so.
  rmdir "$data" 2>/dev/null || true
  if [ -e "$data" ]; then
    echo "$data exists and is no database: remove it, or name another directory in PGDATA" >&2
    exit 1
  fi
  mv "$new" "$data"
fi
# A server that was killed with its bay leaves this file behind.
rm -f "$data/postmaster.pid"
as_user "exec '$bin/postgres' $settings"
