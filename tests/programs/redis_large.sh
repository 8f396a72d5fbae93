# needs: redis-server redis-tools
# options: --memory 2G
# timeout: 120
# Redis with 400 MiB of data saves it while clients change it: another server that loads the file has what there was when it forked.
cli="redis-cli -p $PORT"
begin() {
	$RUN redis-server --bind 127.0.0.1 --port "$PORT" --dir "$DIR" --save '' --daemonize no --enable-debug-command yes \
		--rdbcompression no > "$DIR/../log" 2>&1 &
	server=$!
	for _ in $(seq 400); do
		$cli ping 2>/dev/null | grep -q PONG && return
		sleep 0.05
	done
	cat "$DIR/../log" >&2
	exit 1
}
# Some of the keys with an even number: nobody changes those before the fork.
digest() { $cli debug digest-value $(seq -f "key:%g" 0 94 24999) counter | md5sum; }
change() {
	redis-benchmark -p "$PORT" -n "$3" -c 10 -r 12500 -q eval "redis.call('setrange', 'key:' .. (ARGV[1] * $1 + $2), 9, 'changed by ' .. ARGV[1])" \
		0 __rand_int__ > "$DIR/bench.$3"
}
begin
$cli debug populate 25000 key 16384
$cli set counter 7
$cli dbsize
before=$(digest)
# Saving takes as long as the changes, or longer.
$cli config set rdb-key-save-delay 20
change 2 1 30000 &
odd=$!
$cli bgsave
change 2 0 15000 &
even=$!
for n in $(seq 1000); do echo "incr counter"; done | $cli | tail -1
wait "$odd" "$even"
for _ in $(seq 800); do
	$cli info persistence | tr -d '\r' > "$DIR/info"
	grep -q 'rdb_bgsave_in_progress:0' "$DIR/info" && break
	sleep 0.05
done
grep rdb_last_bgsave_status "$DIR/info"
test "$(digest)" != "$before" && echo 'changed meanwhile'
$cli shutdown nosave 2> /dev/null || true
wait "$server" && echo stopped
begin
$cli get counter
test "$(digest)" = "$before" && echo 'as it was when it forked'
$cli dbsize
$cli shutdown nosave 2> /dev/null || true
wait "$server" && echo stopped
rm -rf "$DIR"/*
