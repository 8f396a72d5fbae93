# needs: nodejs curl
# Node.js (RF-15): event loop, files, HTTP within and to a client outside, worker
# threads, cryptography, compression, signals, children.
# timeout: 60
code=0
$RUN /usr/bin/node "$TESTS/node.js" || code=$?
echo "ended with $code"
# A server that somebody outside asks, until it is ended.
cat > server.js <<'J'
require("http").createServer((q, s) => { let n = 0; q.on("data", d => n += d.length); q.on("end", () => s.end(`${q.method} ${q.url} ${n}\n`)); })
	.listen(process.argv[2], "127.0.0.1", () => console.log("serving"));
J
$RUN /usr/bin/node server.js "$PORT" > served &
server=$!
until grep -q serving served; do sleep 0.02; done
for n in 1 20 300000; do
	head -c $n /dev/zero | curl -s --data-binary @- "http://127.0.0.1:$PORT/of/$n"
done
kill -TERM $server
wait $server || echo "server ended with $?"
rm -f server.js served
