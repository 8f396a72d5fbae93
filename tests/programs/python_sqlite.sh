# Python's sqlite3 as its own tests use it: transactions, rows, adapters, functions, backups, threads, and a database of two processes.
# needs: python3
# timeout: 60
cat > all.py <<'END'
import datetime, os, sqlite3, subprocess, sys, threading, time

def section(name):
    print("--", name)
def fails(f, *args):
    try:
        f(*args)
        print("no error")
    except Exception as e:
        print(type(e).__name__ + ":", e)

section("connections")
db = sqlite3.connect(":memory:")
print(db.isolation_level, db.in_transaction, db.total_changes, db.row_factory, sqlite3.threadsafety)
with sqlite3.connect("file:closed?mode=memory", uri=True) as closed:
    closed.execute("create table t(a)")
closed.close()
fails(closed.execute, "select 1")
fails(sqlite3.connect, "/nowhere/at/all")
fails(db.execute, "selec 1")
fails(db.execute, "select ?", ())
fails(db.execute, "select 1; select 2")
print(db.executescript("create table a(x); insert into a values(1); insert into a values(2);").fetchall())
print(sqlite3.complete_statement("select 1;"), sqlite3.complete_statement("select"))

section("transactions")
db.execute("create table t(id integer primary key, name text unique, value)")
db.execute("insert into t(name, value) values('one', 1)")
print(db.in_transaction)
db.rollback()
print(db.execute("select count(*) from t").fetchone())
with db:
    db.executemany("insert into t(name, value) values(?, ?)", ((f"n{i}", i * 1.5) for i in range(5)))
try:
    with db:
        db.execute("insert into t(name) values('lost')")
        db.execute("insert into t(name) values('n1')")
except sqlite3.IntegrityError as e:
    print(e, e.sqlite_errorname)
print(db.execute("select * from t order by id").fetchall(), db.total_changes)
db.executescript("begin; savepoint s; update t set value = 0; rollback to s; release s; commit")
cursor = db.execute("update t set value = value + 1 where id > 3")
print(cursor.rowcount, cursor.lastrowid, cursor.description)
db.commit()

section("isolation levels")
for level in None, "", "DEFERRED", "IMMEDIATE", "EXCLUSIVE":
    with sqlite3.connect("levels", isolation_level=level) as c, sqlite3.connect("levels", timeout=0) as other:
        c.execute("create table if not exists t(a)")
        c.execute("insert into t values(1)")
        print(repr(level), c.in_transaction, other.execute("select count(*) from t").fetchone() if level != "EXCLUSIVE" else None)
        fails(other.execute, "insert into t values(2)")
        c.commit()
        other.rollback()
    c.close()
    other.close()

section("rows")
db.row_factory = sqlite3.Row
row = db.execute("select id, name as who, value from t where id = 2").fetchone()
print(row.keys(), row["who"], row[-1], tuple(row), len(row), row == db.execute("select 2 id, 'n1' who, 1.5 value").fetchone())
fails(lambda: row["none"])
db.row_factory = lambda c, r: dict(zip([d[0] for d in c.description], r))
print(db.execute("select * from t where id = 1").fetchone())
db.row_factory = None
db.text_factory = bytes
print(db.execute("select name from t").fetchmany(2))
db.text_factory = str

section("adapters and converters")
class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y
sqlite3.register_adapter(Point, lambda p: f"{p.x};{p.y}")
sqlite3.register_converter("point", lambda b: tuple(map(int, b.split(b";"))))
sqlite3.register_converter("day", lambda b: datetime.date.fromisoformat(b.decode()))
typed = sqlite3.connect(":memory:", detect_types=sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES)
typed.execute("create table t(p point, d text)")
typed.execute("insert into t values(?, ?)", (Point(3, -4), datetime.date(2020, 2, 29).isoformat()))
print(typed.execute('select p, d as "d [day]" from t').fetchall())
values = [None, 1, -2**63, 1.5, float("inf"), "t\u00e9xt \U0001f600", "", b"\0\xff", b"", memoryview(b"view")]
print([typed.execute("select ?, typeof(?)", (v, v)).fetchone() for v in values])
fails(typed.execute, "select ?", (2**63,))
fails(typed.execute, "select ?", (object(),))
print(typed.execute("select :a + :b", {"a": 1, "b": 2}).fetchone())

section("functions, aggregates, windows, collations, authorizers")
db.create_function("twice", 1, lambda x: x * 2, deterministic=True)
db.create_function("breaks", 0, lambda: 1 // 0)
print(db.execute("select twice(21), twice('ab')").fetchone())
fails(db.execute, "select breaks()")
fails(db.execute, "select twice(1, 2)")
class Product:
    def __init__(self):
        self.n = 1
    def step(self, x):
        self.n *= x
    def finalize(self):
        return self.n
class Sum:
    def __init__(self):
        self.n = 0
    def step(self, x):
        self.n += x
    def inverse(self, x):
        self.n -= x
    def value(self):
        return self.n
    finalize = value
db.create_aggregate("product", 1, Product)
print(db.execute("select product(id) from t").fetchone())
if hasattr(db, "create_window_function"):
    db.create_window_function("sumint", 1, Sum)
    print(db.execute("select id, sumint(id) over (order by id rows between 1 preceding and 1 following) from t").fetchall())
db.create_collation("backwards", lambda a, b: (a < b) - (a > b))
print(db.execute("select name from t order by name collate backwards").fetchall())
db.set_authorizer(lambda action, table, *rest: sqlite3.SQLITE_DENY if table == "a" else sqlite3.SQLITE_OK)
fails(db.execute, "select x from a")
db.set_authorizer(lambda *rest: sqlite3.SQLITE_OK)
seen = []
db.set_trace_callback(seen.append)
db.execute("select 1 + ?", (2,)).fetchall()
db.set_trace_callback(None)
print(seen)
print(db.execute("with recursive c(n) as (select 1 union all select n + 1 from c where n < 1000) select sum(n) from c").fetchone())

section("backup, dump, blobs")
steps = []
with sqlite3.connect("copy") as copy:
    db.backup(copy, pages=1, progress=lambda status, left, total: steps.append((left, total)))
print(len(steps) > 2, steps[-1][0], copy.execute("select name from t").fetchall() == db.execute("select name from t").fetchall())
print("\n".join(db.iterdump()))
copy.execute("create table b(data)")
copy.execute("insert into b values(zeroblob(100000))")
if hasattr(copy, "blobopen"):
    with copy.blobopen("b", "data", 1) as blob:
        blob.seek(50000)
        blob.write(b"middle")
        blob[0] = 65
        print(len(blob), blob.tell(), blob[0:3], blob[49999:50007])
        fails(blob.write, b"x" * 60000)
        fails(lambda: blob[100000])
copy.commit()
print(copy.execute("select length(data), substr(data, 50001, 6) from b").fetchone(), copy.execute("pragma integrity_check").fetchone())
copy.close()
if hasattr(db, "serialize"):
    with sqlite3.connect(":memory:") as again:
        again.deserialize(db.serialize())
        print(again.execute("select count(*) from t").fetchone())

section("threads")
def in_thread(f, *args):
    said = []
    def run():
        try:
            said.append(f(*args))
        except Exception as e:
            said.append(type(e).__name__)
    t = threading.Thread(target=run)
    t.start()
    t.join()
    return said
print(in_thread(db.execute, "select 1"), in_thread(db.close))
shared = sqlite3.connect("threads", check_same_thread=False, isolation_level=None)
shared.execute("pragma journal_mode = wal")
shared.execute("create table n(i)")
def adds(own):
    c = sqlite3.connect("threads", timeout=30, isolation_level=None) if own else shared
    for i in range(25):
        c.execute("insert into n values(?)", (i,))
    if own:
        c.close()
threads = [threading.Thread(target=adds, args=(i % 2,)) for i in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(shared.execute("select count(*), sum(i) from n").fetchone())
def endless():
    return shared.execute("with recursive c(n) as (select 1 union all select n + 1 from c) select count(*) from c").fetchone()
stop = threading.Timer(0.3, shared.interrupt)
stop.start()
fails(endless)
stop.join()
calls = 0
def progress():
    global calls
    calls += 1
    return calls == 50
shared.set_progress_handler(progress, 1000)
fails(endless)
shared.set_progress_handler(None, 0)
shared.close()

section("two processes")
OTHER = '''
import sqlite3, sys
c = sqlite3.connect("both", isolation_level=None)
c.execute("begin exclusive")
c.execute("insert into t values('other')")
print("has it", flush=True)
sys.stdin.readline()
c.execute("commit")
print("let go", flush=True)
'''
both = sqlite3.connect("both", timeout=0.2)
both.execute("create table t(who)")
both.commit()
other = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(other.stdout.readline().strip())
begun = time.monotonic()
fails(both.execute, "select * from t")
fails(both.execute, "insert into t values('we')")
print("it waited:", time.monotonic() - begun > 0.3)
both.execute("pragma busy_timeout = 30000")
threading.Timer(0.3, lambda: (other.stdin.write("\n"), other.stdin.flush())).start()
both.execute("insert into t values('we')")
both.commit()
print(other.stdout.readline().strip(), other.wait(), both.execute("select who from t").fetchall())
# Who is killed within a transaction leaves nothing of it.
other = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(other.stdout.readline().strip())
other.kill()
other.wait()
print(both.execute("select who from t").fetchall(), both.execute("pragma integrity_check").fetchone())
# All count on together.
ADDS = '''
import sqlite3
c = sqlite3.connect("both", timeout=50, isolation_level=None)
for i in range(20):
    c.execute("begin immediate")
    n, = c.execute("select n from counter").fetchone()
    c.execute("update counter set n = ?", (n + 1,))
    c.execute("commit")
'''
both.executescript("create table counter(n); insert into counter values(0)")
both.commit()
others = [subprocess.Popen([sys.executable, "-c", ADDS]) for _ in range(3)]
print([o.wait() for o in others], both.execute("select n from counter").fetchone())
both.close()
print(sorted(os.listdir()))
END
$RUN python3 all.py
# What the one side wrote, the host's own reads.
python3 -c '
import sqlite3
for name, table in ("both", "t"), ("copy", "t"), ("threads", "n"):
    c = sqlite3.connect(name)
    print(c.execute(f"select count(*) from {table}").fetchone(), c.execute("pragma integrity_check").fetchone())
'
rm -f both copy levels threads threads-*
