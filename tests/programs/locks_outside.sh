# File locks of a volume: between a cell, another one and the host, where each opens the file now and then or has it open all the time. On
# Linux all of it is on the host.
# needs: python3
# timeout: 180
cat > count.py <<'P'
import fcntl, os, random, sys, time
path, how, times, keeps, pause = sys.argv[1], getattr(fcntl, sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "keeps", float(sys.argv[5])
f = os.open(path, os.O_RDWR | os.O_CREAT) if keeps else None
for i in range(times):
    if pause:
        time.sleep(random.random() * pause)
    if not keeps:
        f = os.open(path, os.O_RDWR | os.O_CREAT)
    how(f, fcntl.LOCK_EX)
    count = int(os.pread(f, 100, 0) or b"0")
    if i % 50 == 0:
        time.sleep(0.001)
    # Of another length each time, and what was there before may be longer.
    os.ftruncate(f, 0)
    os.pwrite(f, b"%d\n" % (count + 1), 0)
    if keeps:
        how(f, fcntl.LOCK_UN)
    else:
        os.close(f)
P
for how in flock lockf; do
    $RUN bash -c "for i in 1 2; do /usr/bin/python3 count.py $how.k $how 3000 keeps 0 & /usr/bin/python3 count.py $how.o $how 3000 opens 0 & done; wait" &
    for inside in k o; do
        $RUN /usr/bin/python3 count.py $how.$inside $how 20 opens 0.1 &
        python3 count.py $how.$inside $how 400 keeps 0 &
        python3 count.py $how.$inside $how 5 opens 1.5 &
    done
done
wait
head *.[ko]
rm *.[ko]
# Who has taken one often, so that it may be nobody else's business, and has it now.
cat > holds.py <<'P'
import fcntl, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for i in range(100):
    fcntl.flock(f, fcntl.LOCK_EX)
    fcntl.lockf(f, fcntl.LOCK_EX, 10, 5)
    fcntl.lockf(f, fcntl.LOCK_UN)
    fcntl.flock(f, fcntl.LOCK_UN)
fcntl.lockf(f, fcntl.LOCK_EX, 10, 5)
fcntl.lockf(f, fcntl.LOCK_SH, 10, 20)
fcntl.flock(f, fcntl.LOCK_SH)
os.write(f, b"written under a lock\n")
print("has them", flush=True)
sys.stdin.readline()
fcntl.lockf(f, fcntl.LOCK_UN, 5, 5)
print("fewer", flush=True)
sys.stdin.readline()
os.close(f)
print("none", flush=True)
sys.stdin.readline()
P
cat > asks.py <<'P'
import fcntl, os, subprocess, sys
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def can(what, *args):
    try:
        what(*args)
        return True
    except BlockingIOError:
        return False
for turn in range(3):
    print(p.stdout.readline().strip())
    f = os.open("held", os.O_RDWR)
    print(os.read(f, 100))
    for kind in fcntl.LOCK_SH, fcntl.LOCK_EX:
        kind |= fcntl.LOCK_NB
        flocks = can(fcntl.flock, f, kind)
        parts = [can(fcntl.lockf, f, kind, length, start) for start, length in ((0, 5), (5, 1), (9, 1), (10, 1), (14, 1), (15, 5), (20, 10), (30, 1))]
        print(flocks, parts)
    os.close(f)
    p.stdin.write("\n")
    p.stdin.flush()
print(p.wait())
P
python3 asks.py $RUN /usr/bin/python3 holds.py held
# Closed for long: nobody has to wait for it.
cat > closes.py <<'P'
import fcntl, os, sys, time
for turn in range(2):
    begun = time.monotonic()
    f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    for i in range(60):
        fcntl.lockf(f, fcntl.LOCK_SH, 1, 10)
        fcntl.lockf(f, fcntl.LOCK_SH, 10, 20)
        fcntl.lockf(f, fcntl.LOCK_UN, 1, 10)
        fcntl.lockf(f, fcntl.LOCK_EX, 1, 11)
        fcntl.lockf(f, fcntl.LOCK_UN)
    fcntl.lockf(f, fcntl.LOCK_SH, 10, 20)
    os.close(f)
    print("closed", time.monotonic() - begun < 20, flush=True)
    sys.stdin.readline()
P
python3 - $RUN /usr/bin/python3 closes.py closed <<'P'
import fcntl, os, subprocess, sys, time
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for turn in range(2):
    print(p.stdout.readline().strip())
    time.sleep(2.5)
    begun = time.monotonic()
    f = os.open("closed", os.O_RDWR)
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print(time.monotonic() - begun < 20)
    os.close(f)
    p.stdin.write("\n")
    p.stdin.flush()
print(p.wait())
P
# A database, and its journal beside it, which is not locked itself.
cat > rows.py <<'P'
import random, sqlite3, sys, time
for i in range(int(sys.argv[2])):
    time.sleep(random.random() * float(sys.argv[3]))
    d = sqlite3.connect("db", isolation_level=None, timeout=60)
    for k in range(5):
        d.execute("begin immediate")
        count = d.execute("select count from one").fetchone()[0]
        d.execute("update one set count = ?", (count + 1,))
        d.execute("insert into rows(who, count) values(?, ?)", (sys.argv[1], count))
        d.execute("commit")
    d.close()
P
for mode in delete wal; do
    python3 - <<P
import sqlite3
d = sqlite3.connect("db")
print(d.execute("pragma journal_mode=$mode").fetchall())
d.executescript("create table one(count); insert into one values(0); create table rows(id integer primary key, who, count)")
P
    $RUN bash -c "for i in 1 2; do /usr/bin/python3 rows.py cell\$i 100 0 & done; wait" &
    $RUN /usr/bin/python3 rows.py other 10 0.2 &
    for i in 1 2; do python3 rows.py host$i 10 0.3 & done
    wait
    $RUN /usr/bin/python3 - <<'P'
import sqlite3
d = sqlite3.connect("db")
print(d.execute("select count from one").fetchall(), d.execute("select count(*), count(distinct count) from rows").fetchall())
print(d.execute("select who, count(*) from rows group by who order by who").fetchall(), d.execute("pragma integrity_check").fetchall())
P
    rm db
done
