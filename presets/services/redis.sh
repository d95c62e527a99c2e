# Redis, or Valkey, on localhost:6379, without a password.
set -eu
server=$(command -v redis-server || command -v valkey-server || true)
if [ -z "$server" ]; then
  echo "Redis is not installed in this bay: install it, for example with apt-get install -y redis-server" >&2
  exit 127
fi
data=${REDIS_DATA:-/var/lib/redis/bay}
mkdir -p "$data"
exec "$server" --bind 127.0.0.1 --port 6379 --dir "$data" --daemonize no
