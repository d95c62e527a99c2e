# MariaDB on localhost:3306 and in /run/mysqld/mysqld.sock. Its user root needs no password.
set -eu
PATH=$PATH:/usr/sbin:/usr/libexec
server=$(command -v mariadbd || command -v mysqld || true)
make=$(command -v mariadb-install-db || command -v mysql_install_db || true)
if [ -z "$server" ] || [ -z "$make" ]; then
  echo "MariaDB is not installed in this bay: install it, for example with apt-get install -y mariadb-server" >&2
  exit 127
fi
data=${MARIADB_DATA:-/var/lib/mysql-bay}
mkdir -p /run/mysqld "$data"
chown mysql: /run/mysqld "$data"
if [ ! -d "$data/mysql" ]; then
  "$make" --user=mysql --datadir="$data" --auth-root-authentication-method=normal --skip-test-db
fi
exec "$server" --user=mysql --datadir="$data" --bind-address=127.0.0.1 --port=3306 --socket=/run/mysqld/mysqld.sock
