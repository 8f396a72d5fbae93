# needs: redis-server redis-tools
# timeout: 90
# Redis with its append-only file: data types, a script, a transaction,
# pub/sub, blocking calls, and a restart that keeps the data.
. "$TESTS/redis.inc"

stop() {
	$cli shutdown nosave 2>/dev/null || true
	wait "$server" && echo "stopped" || echo "stopped with $?"
}

start
$cli set greeting hello
$cli append greeting ", world"
$cli get greeting
$cli mset a 1 b 2 c 3
$cli incrby a 41
$cli lpush list x y z
$cli lrange list 0 -1
$cli hset hash field value other thing
$cli hgetall hash
$cli zadd set 1 one 2 two 3 three
$cli zrangebyscore set 2 3
$cli sadd members alpha beta
$cli scard members
$cli xadd stream 1-1 k v
$cli xlen stream
$cli eval 'return redis.call("incr", KEYS[1]) * 2' 1 b
printf 'multi\nset t 1\nincr t\nexec\n' | $cli
$cli setex soon 100 value
test "$($cli ttl soon)" -gt 90 && echo "expires"
$cli set big "$(head -c 100000 /dev/zero | tr '\0' b)"
$cli strlen big
# Blocking calls and messages between clients.
$cli blpop queue 10 > "$DIR/popped" &
waiter=$!
sleep 0.3
$cli rpush queue item
wait "$waiter"
cat "$DIR/popped"
timeout 60 redis-cli -p "$PORT" subscribe news > "$DIR/heard" &
listener=$!
for _ in $(seq 100); do
	test "$($cli publish news hi)" = 1 && break
	sleep 0.05
done
for _ in $(seq 100); do grep -q hi "$DIR/heard" && break; sleep 0.05; done
kill "$listener"
wait "$listener" || true
grep -c hi "$DIR/heard"
for i in $(seq 1000); do echo "set key$i value$i"; done | $cli | sort | uniq -c
$cli dbsize
$cli debug sleep 0
redis-benchmark -p "$PORT" -t ping,set,get,lpush -n 2000 -c 20 -q | grep -c 'requests per second'
sum=$($cli debug digest-value greeting hash list set)
stop

start
test "$sum" = "$($cli debug digest-value greeting hash list set)" && echo "the data is still there"
$cli get greeting
$cli get key777
# Ended hard, in the middle: what was answered is in the file after a second.
$cli set late yes
sleep 1.5
# Not with a chance to write anything more.
kill -9 "$server"
wait "$server" || echo "killed with $?"
start
$cli get late
stop
# The files differ by times and random numbers; the data in them was compared.
rm -rf "$DIR"/*
