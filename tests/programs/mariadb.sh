# needs: mariadb-server mariadb-client sysbench
# options: --memory 2G --cores 2
# timeout: 60
# MariaDB on files of the host: made, asked over its socket and TCP, loaded by sysbench, killed, recovered and shut down.
cat > "$DIR/server" <<'END'
export LC_ALL=C PATH=$PATH:/usr/sbin
data=$DIR/data socket=/tmp/mariadb.$2 port=$1
client="mariadb --no-defaults --user=root --batch"
here="$client --socket=$socket"
start() {
	mariadbd --no-defaults --datadir="$data" --socket="$socket" --port="$port" --bind-address=127.0.0.1 --user=root \
		--pid-file="$DIR/pid" --innodb-buffer-pool-size=64M --innodb-log-file-size=16M >> "$DIR/log" 2>&1 &
	server=$!
	for _ in $(seq 400); do
		mariadb-admin --no-defaults --user=root --socket="$socket" ping 2>/dev/null && return
		sleep 0.05
	done
	cat "$DIR/log" >&2
	exit 1
}
mariadb-install-db --no-defaults --datadir="$data" --user=root --auth-root-authentication-method=normal \
	--skip-test-db --innodb-log-file-size=16M > "$DIR/installed" 2>&1 || cat "$DIR/installed" >&2
grep '^OK$' "$DIR/installed"
start
$here <<SQL
select version();
create database sbtest;
use sbtest;
create table t (n int primary key, text varchar(100), index (text)) engine=innodb;
insert into t select seq, concat('row ', seq) from seq_1_to_5000;
select count(*), sum(n), max(text) from t;
begin;
update t set text = 'changed' where n % 2 = 0;
rollback;
select count(*) from t where text = 'changed';
explain select * from t where text = 'row 77';
create table words (id int auto_increment primary key, line text, fulltext (line)) engine=aria;
insert into words (line) values ('the quick brown fox'), ('jumps over'), ('the lazy dog');
select id from words where match (line) against ('lazy');
select n into outfile '$DIR/out' from t where n < 4;
load data infile '$DIR/out' ignore into table t (n);
show warnings;
create procedure p(a int) select a * 2;
call p(21);
create temporary table s select text, n from t order by reverse(text), n;
select count(distinct text) from s;
SQL
cat "$DIR/out"
$client --host=127.0.0.1 --port="$port" -e "select count(*) from sbtest.t; select no_such_thing" 2>&1 || echo "ended: $?"
for test in oltp_read_write oltp_read_only; do
	for step in prepare run cleanup; do
		threads=$(test $step = run && echo 4 || echo 1)
		sysbench --db-driver=mysql --mysql-socket="$socket" --mysql-user=root --tables=2 --table-size=1000 \
			--threads=$threads --events=200 --time=0 --rand-seed=1 "$test" "$step" > "$DIR/$step" 2>&1 || cat "$DIR/$step" >&2
		# Transactions that met in a deadlock are done again: how much was read says nothing.
		grep -E '^(Creating|Dropping)|transactions:|reconnects' "$DIR/$step" | sed 's/(.*//' | sort
	done
done
# Two that wait for each other's rows: one of them is told. Each says by a lock of a name that it has its first.
$here sbtest <<SQL
delimiter //
create procedure until_locked(name text) while is_used_lock(name) is null do do sleep(0.01); end while //
SQL
$here sbtest -e "begin; update t set text = 1 where n = 1; do get_lock('one', 0); call until_locked('two'); update t set text = 1 where n = 2; commit" > "$DIR/a" 2>&1 &
first=$!
$here sbtest -e "begin; update t set text = 2 where n = 2; do get_lock('two', 0); call until_locked('one'); update t set text = 2 where n = 1; commit" > "$DIR/b" 2>&1 &
wait "$first" || true
wait "$!" || true
grep -h -o '^ERROR 1213' "$DIR/a" "$DIR/b"
# Killed in a transaction that is open, after one that is committed.
$here sbtest -e "insert into t values (10001, 'kept')"
$here sbtest -e "begin; insert into t values (10002, 'lost'); update t set text = 'lost' where n < 1000; do get_lock('lost', 0); do sleep(20)" > "$DIR/c" 2>&1 &
client=$!
$here sbtest -e "call until_locked('lost')"
kill -KILL "$server"
wait "$server" || echo "killed: $?"
wait "$client" || echo "ended: $?"
start
$here sbtest -e "select n, text from t where n > 10000; select count(*) from t where text = 'lost'; check table t, words"
mariadb-admin --no-defaults --user=root --socket="$socket" shutdown
wait "$server"
echo "ended: $?"
grep -c 'Starting crash recovery' "$DIR/log"
grep libnuma "$DIR/log" || true
END
$RUN bash -eu "$DIR/server" "$PORT" "$PORT"
rm -r "${DIR:?}"/*
