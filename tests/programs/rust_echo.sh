# A tokio program: its own round of timers, files, sockets, signals and
# children; then its echo server with clients outside and in a second cell.
# timeout: 400
built=$TESTS/../../target/test-programs/rust-echo
(cd "$TESTS/rust-echo" && CARGO_TARGET_DIR=$built cargo build -q)
cp "$built/debug/rust-echo" program

$RUN ./program
$RUN ./program serve "$PORT" > served &
server=$!
for _ in $(seq 200); do
	grep -q serving served && break
	sleep 0.05
done
./program client "$PORT"
$RUN ./program client "$PORT"
kill -TERM $server
code=0
wait $server || code=$?
echo "server ended with $code"
cat served
