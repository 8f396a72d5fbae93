# needs: golang-go curl
# A static Go program: goroutines, preemption by signals, timers, HTTP, UDP and
# Unix sockets, signals, children by clone(CLONE_VFORK), profiling; then its
# HTTP server with a client outside.
# timeout: 180
# The compiler's own directory serves where there is no package.
PATH=$PATH:/usr/local/go/bin
built=$TESTS/../../target/test-programs
mkdir -p "$built"
# Two builds at once end with the same file.
(cd "$TESTS/go" && CGO_ENABLED=0 go build -o "$built/go.$$" .) && mv "$built/go.$$" "$built/go"
cp "$built/go" program

$RUN ./program
$RUN ./program serve "$PORT" > served &
server=$!
for _ in $(seq 200); do
	grep -q serving served && break
	sleep 0.05
done
head -c 300000 /dev/zero > body
for n in 1 2 3 4 5; do
	curl -sS "http://127.0.0.1:$PORT/path/$n" &
	wait $!
done
curl -sS --data-binary @body "http://127.0.0.1:$PORT/upload"
kill -TERM $server
code=0
wait $server || code=$?
echo "server ended with $code"
cat served
