# sqlite3 on a file database: transactions, write-ahead log, indexes, recovery after SIGKILL.
# needs: sqlite3
# timeout: 120
s() { $RUN sqlite3 "$@" 2>&1 || echo "status $?"; }
s db 'create table t(id integer primary key, name text, n real); create index i on t(name);'
cat > fill.sql <<'SQL'
begin;
with recursive c(x) as (select 1 union all select x + 1 from c where x < 20000)
insert into t select x, 'name ' || (x * 7919 % 20011), x / 3.0 from c;
commit;
select count(*), sum(id), min(name), max(name) from t;
begin; delete from t where id % 2 = 0; select count(*) from t; rollback;
select count(*) from t;
explain query plan select * from t where name = 'name 5';
select id, n from t where name between 'name 50' and 'name 5002' order by name;
update t set n = n * 2 where id between 10 and 20; select changes(), total(n) from t;
create view v as select name, count(*) c from t group by substr(name, 1, 6);
select count(*) from v;
create trigger g after insert on t begin update t set n = -1 where id = new.id; end;
insert into t values(30000, 'by trigger', 5); select * from t where id = 30000;
savepoint a; delete from t; rollback to a; release a; select count(*) from t;
create table blobs(b blob); insert into blobs values(randomblob(100000)), (zeroblob(50000)); select length(b) from blobs;
insert into t values(1, 'again', 0);
select json_extract('{"a":[1,2]}', '$.a[1]'), printf('%.3f', 2.0/3), upper('x'), date(0, 'unixepoch');
vacuum; pragma integrity_check; pragma page_count;
SQL
s db < fill.sql
s db 'delete from blobs; vacuum; pragma integrity_check;'
sqlite3 db 'select count(*), total(n) from t; pragma integrity_check;'
$RUN sqlite3 db .dump | md5sum
$RUN sqlite3 db .schema
$RUN sqlite3 -csv -header db "select * from t where id < 4"
$RUN sqlite3 -box db 'select 1 as a, null as b'
# What the host changes, the cell sees, and the other way around.
sqlite3 db "insert into t values(40000, 'from outside', 1)"
s db 'select name from t where id = 40000; delete from t where id = 40000;'
sqlite3 db 'select count(*) from t where id = 40000'
# Each statement is a transaction: takes its locks and gives them back.
s many 'create table t(x)'
seq 1000 | sed 's/.*/insert into t values(&);/' > many.sql
s many < many.sql
s many 'select count(*) from t'
rm many many.sql
# Write-ahead log.
s wal 'pragma journal_mode = wal; create table w(x); insert into w values(1);'
s wal "$(for i in $(seq 200); do echo "insert into w values($i);"; done) select count(*) from w;"
s wal 'pragma wal_checkpoint(truncate); select sum(x) from w;'
sqlite3 wal 'insert into w values(1000); select count(*) from w'
s wal 'select max(x) from w; pragma journal_mode = delete;'
ls
for mode in truncate persist memory off; do
    s "mode-$mode" "pragma journal_mode = $mode; pragma synchronous = full; create table x(y); begin; insert into x values(1); commit; select * from x;"
done
rm mode-*
s -readonly db 'insert into t values(9, 9, 9)'
s db "attach 'other' as o; create table o.copy as select * from t where id < 10; select count(*) from o.copy;"
s other '.backup back' '.tables'; s back 'select count(*) from copy'
s :memory: '.mode list' 'create table m(x); insert into m values(3); select x*x from m;'
s other '.import --csv rows.csv missing' | sed -n '1,1p'
printf '1,a\n2,b\n' > rows.csv; s other 'create table imported(a, b)' ; s other '.import --csv rows.csv imported' 'select * from imported'
s nothere/db 'select 1 from x'
head -c 5000 /dev/urandom > broken; s broken 'select * from t'; rm broken

# Killed in the middle of a transaction, with a hot journal left behind: recovered.
mkfifo feed
locked() {
    for f in "$1"*; do if grep -q ":$(stat -c %i "$f") " /proc/locks; then return 0; fi; done
    return 1
}
killed() {
    $RUN sqlite3 "$1" < feed > killed.out 2>&1 &
    pid=$!
    exec 9> feed
    cat >&9
    until grep -q ready killed.out; do sleep 0.02; done
    kill -KILL $pid
    wait $pid 2> /dev/null || true
    # What the supervisor had started ends with it, if not at once, and has the locks until then.
    while locked "$1"; do sleep 0.02; done
    exec 9>&-
    rm killed.out
}
killed db <<'SQL'
pragma cache_size = 10;
pragma cache_spill = 1;
begin immediate;
update t set n = 12345.0, name = 'torn';
select 'ready';
SQL
test -s db-journal && echo 'journal left behind'
s db "select count(*) from t where name = 'torn'; pragma integrity_check; select count(*) from t;"
killed db <<'SQL'
create table after_kill(x);
insert into after_kill values(17);
begin;
insert into after_kill values(18);
select 'ready';
SQL
s db 'select * from after_kill; pragma integrity_check;'
killed wal <<'SQL'
pragma journal_mode = wal;
insert into w values(5000);
begin; insert into w values(6000);
select 'ready';
SQL
s wal 'select max(x) from w; pragma integrity_check;'
sqlite3 wal 'pragma journal_mode = delete; select count(*) from w'
$RUN sqlite3 db .dump | grep -v torn | md5sum
rm -f feed db wal other back *-journal *-wal *-shm
