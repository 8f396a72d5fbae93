# needs: redis-server redis-tools
# options: --memory 1G
# timeout: 90
# Redis forks to save: snapshots and rewrites of the append-only file, one after the other, while clients write; and what is in the
# files after a restart is what was in memory.
. "$TESTS/redis.inc"
settled() {
	for _ in $(seq 400); do
		$cli info persistence | tr -d '\r' > "$DIR/info"
		grep -q 'rdb_bgsave_in_progress:0' "$DIR/info" && grep -q 'aof_rewrite_in_progress:0' "$DIR/info" &&
			grep -q 'aof_rewrite_scheduled:0' "$DIR/info" && break
		sleep 0.05
	done
	grep -E 'rdb_last_bgsave_status|aof_last_bgrewrite_status|aof_last_write_status' "$DIR/info"
}
start
$cli debug populate 100000 key 64
redis-benchmark -p "$PORT" -t incr -r 1000 -n 60000 -c 10 -q > "$DIR/bench" &
load=$!
for n in 1 2 3; do
	$cli bgsave > "$DIR/said"
	settled
	$cli bgrewriteaof > "$DIR/said"
	settled
done
wait "$load"
$cli info stats | tr -d '\r' | grep total_forks
# All increments arrived, whoever was saving meanwhile.
$cli eval 'local s = 0; for _, k in ipairs(redis.call("keys", "counter:*")) do s = s + redis.call("get", k) end; return s' 0
$cli bgsave schedule > "$DIR/said"
settled
sum=$($cli debug digest)
$cli shutdown nosave 2>/dev/null || true
wait "$server" && echo stopped
start
test "$sum" = "$($cli debug digest)" && echo "the same after a restart"
$cli dbsize | tr -dc 0-9 | wc -c
$cli shutdown nosave 2>/dev/null || true
wait "$server" && echo stopped
rm -rf "$DIR"/*
