# needs: postgresql perl
# options: --memory 2G
# timeout: 60
# PostgreSQL: a server of many processes with shared memory, and clients. It does not run as root.
cat > "$DIR/server" <<'EOF'
PATH=/usr/lib/postgresql/15/bin:$PATH
export LC_ALL=C PGHOST=/tmp PGPORT=$1 PGUSER=postgres PGDATABASE=postgres
PGDATA=$(mktemp -d)
export PGDATA
cd "$PGDATA"
initdb --username=postgres --auth=trust | grep -E '^(selecting (dynamic|.*(max|shared))|syncing)'
pg_ctl start --log="$PGDATA/log" --options="-p $1 -k /tmp -c autovacuum=off" > started
tail -1 started
psql --no-psqlrc <<SQL
create table t (n int primary key, text text);
insert into t select n, 'row ' || n from generate_series(1, 5000) n;
select count(*), sum(n), max(text) from t;
begin;
update t set text = 'changed' where n % 2 = 0;
rollback;
select count(*) from t where text = 'changed';
set max_parallel_workers_per_gather = 2;
set parallel_setup_cost = 0;
set parallel_tuple_cost = 0;
set min_parallel_table_scan_size = 0;
explain (costs off) select count(*) from t;
select count(*) from t;
select 1 / 0;
SQL
pgbench --initialize --quiet 2> log.init
pgbench --client=4 --jobs=2 --transactions=100 2>&1 | grep -E '^(scaling|number of (clients|transactions|failed))'
psql --no-psqlrc --tuples-only --no-align --command='select count(*) from pgbench_history'
# Two that wait for each other's rows: one of them is told. Each says by a lock of a number that it has its first.
until_locked() { echo "do 'begin while not exists (select from pg_locks where locktype = ''advisory'' and objid = $1) loop perform pg_sleep(0.01); end loop; end'"; }
psql --no-psqlrc --quiet --command="begin; update t set text = 1 where n = 1; select pg_advisory_lock(1); $(until_locked 2); update t set text = 1 where n = 2" > a 2>&1 &
first=$!
psql --no-psqlrc --quiet --command="begin; update t set text = 2 where n = 2; select pg_advisory_lock(2); $(until_locked 1); update t set text = 2 where n = 1" > b 2>&1 &
wait "$first" || true
wait "$!" || true
grep -h '^ERROR' a b
# A backend that is killed: all others begin anew.
psql --no-psqlrc --quiet --command='select pg_sleep(20)' > c 2>&1 &
client=$!
backend=
until [ "$backend" ]; do backend=$(psql -At --command="select pid from pg_stat_activity where query like 'select pg_sleep(20)%'"); done
kill -KILL "$backend"
wait "$client" || echo "ended: $?"
until psql --command='select 1' > d 2>&1; do sleep 0.1; done
psql -At --command='select count(*) from t'
pg_ctl stop | tail -1
pg_controldata | grep state
ls -A /dev/shm | grep -c PostgreSQL || true
cd /
rm -r "$PGDATA"
EOF
nobody='$) = "65534 65534"; $( = 65534; ($<, $>) = (65534, 65534); exec @ARGV'
$RUN perl -e "$nobody" bash -eu "$DIR/server" "$PORT"
rm "$DIR/server"
