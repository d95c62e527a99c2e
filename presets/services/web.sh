# The files of the service's directory, which is the workspace, on http://localhost:8000/.
set -eu
if command -v python3 >/dev/null; then
  exec python3 -m http.server 8000 --bind 127.0.0.1
fi
if command -v busybox >/dev/null; then
  exec busybox httpd -f -p 127.0.0.1:8000
fi
echo "neither python3 nor busybox is installed in this bay: install one of them" >&2
exit 127
