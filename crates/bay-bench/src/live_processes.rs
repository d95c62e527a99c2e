//! The processes whose memory the contest `memory` captures: a development server and two databases.

use std::path::Path;

use bay_types::{ApiError, ErrorCode};

/// A development server: it watches the files, has a connection to a database open, and records the longest time in
/// which it did not run.
const SERVER: &str = r"
const http = require('http'), net = require('net'), fs = require('fs');
const kept = [];
for (let i = 0; i < 40; i++) kept.push(Buffer.alloc(1 << 20, i + 1));
let changes = 0; fs.watch('.', () => changes++);
let last = process.hrtime.bigint(), gap = 0n;
setInterval(() => { const now = process.hrtime.bigint(); if (now - last > gap) gap = now - last; last = now; }, 1);
const redis = net.connect(6379, '127.0.0.1'), waiting = [];
redis.on('data', data => { const next = waiting.shift(); if (next) next(data); });
http.createServer((request, response) => {
  if (request.url === '/gap') { response.end(String(Number(gap) / 1e6)); gap = 0n; return; }
  waiting.push(data => response.end(data)); redis.write('GET key:7\r\n');
}).listen(3000, '127.0.0.1');
";

/// Scripts for one place: one that starts everything and waits until it answers, and one that queries each process
/// once.
pub(crate) struct Scripts {
    pub(crate) start: String,
    pub(crate) ask: String,
}

pub(crate) fn scripts(postgres: Option<&Path>) -> Scripts {
    // Without PostgreSQL, redis gets more data instead.
    let keys = if postgres.is_some() { 200_000 } else { 240_000 };
    let mut start = format!(
        "set -e; cd /workspace; chmod 777 .; printf '%s' \"$SERVER\" > server.js; export UV_USE_IO_URING=0
        (setsid redis-server --port 6379 --bind 127.0.0.1 --save '' </dev/null >/dev/null 2>&1 &)
        until redis-cli ping; do sleep 0.05; done
        redis-cli eval \"for i = 1, {keys} do redis.call('set', 'key:' .. i, string.rep('x', 900)) end\" 0
        (setsid node server.js </dev/null >/dev/null 2>&1 &)
        until curl -sf 127.0.0.1:3000/; do sleep 0.05; done\n"
    );
    let mut ask =
        "redis-cli get key:7 > /dev/null & a=$!; curl -sf 127.0.0.1:3000/ > /dev/null & b=$!; ".to_owned();
    if let Some(bin) = postgres {
        let bin = bin.display();
        let psql = format!("{bin}/psql -h 127.0.0.1 -U bench postgres -Atqc");
        start.push_str(&format!(
            "nobody='setpriv --reuid=65534 --regid=65534 --clear-groups'
            $nobody {bin}/initdb -A trust -U bench -D pg
            (setsid $nobody {bin}/postgres -D pg -k /workspace -c listen_addresses=127.0.0.1 -c shared_buffers=64MB </dev/null >/dev/null 2>&1 &)
            until {psql} 'select 1'; do sleep 0.05; done
            {psql} \"create table t as select n, repeat('y', 500) y from generate_series(1, 60000) n\"
            {psql} 'select sum(length(y)) from t'\n"
        ));
        ask.push_str(&format!("{psql} 'select y from t where n = 7' > /dev/null & c=$!; "));
    }
    ask.push_str("wait $a && wait $b && wait $c");
    Scripts { start: format!("exec > /dev/null 2>&1; SERVER=$(cat <<'EOF'{SERVER}EOF\n)\n{start}"), ask }
}

/// The longest time in which a process inside did not run, in milliseconds, since the last query.
pub(crate) const ASK_GAP: &str = "curl -sf 127.0.0.1:3000/gap";

/// A number that a script printed.
pub(crate) fn number(text: &str) -> Result<f64, ApiError> {
    let said = || ApiError::new(ErrorCode::Internal, format!("{text:?} is no number"), "");
    text.trim().parse().map_err(|_| said())
}
