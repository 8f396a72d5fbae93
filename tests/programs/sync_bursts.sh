# A file of which parts are written to the device one after another, as databases do with their logs: its times, its size and what others
# change in it meanwhile and afterwards, without locks. On Linux all of it is on the host. Who changes something between two writes of the
# program does so more than once: what comes between one of them and the look at the file's times behind it counts as the program's own.
# needs: python3
# timeout: 120
cat > writes.py <<'P'
import os, sys, time
path, sync = sys.argv[1], getattr(os, sys.argv[2])
f = os.open(path, os.O_RDWR | os.O_CREAT)
os.pwrite(f, bytes(256 << 10), 0)
os.fsync(f)

def burst(seconds, changes=None):
    """Writes to the first half until what others change in the second is seen, too, or for so long."""
    ends, n = time.time() + seconds, 0
    while time.time() < ends:
        n += 1
        os.pwrite(f, b"%08d" % n, n * 4096 % (128 << 10))
        sync(f)
        if changes and os.pread(f, len(changes), 200 << 10) == changes:
            return "seen"
    return "not seen" if changes else n > 1

def times():
    a, b = os.fstat(f), os.stat(path)
    assert (a.st_mtime_ns, a.st_size) == (b.st_mtime_ns, b.st_size), (a, b)
    return a

def others(said):
    print(said, flush=True)
    sys.stdin.readline()

before = times()
print("many", burst(0.3))
after = times()
assert after.st_mtime_ns > before.st_mtime_ns and abs(after.st_mtime - time.time()) < 5, (after, time.time())
# Nobody writes any more, and nothing changes.
time.sleep(0.5)
assert times() == after, (times(), after)
with open(path + ".time", "w") as t:
    t.write(str(after.st_mtime_ns))
others("written")
print("others, during a burst that reads:", burst(5, b"from outside"))
burst(0.2)
others("burst over")
ends = time.time() + 5
while os.pread(f, 5, 210 << 10) != b"after" and time.time() < ends:
    time.sleep(0.02)
print("others, after a burst:", os.pread(f, 5, 210 << 10))
burst(0.2)
others("longer?")
ends = time.time() + 5
while os.fstat(f).st_size != 300 << 10 and time.time() < ends:
    time.sleep(0.02)
print("size", os.fstat(f).st_size, os.lseek(f, 0, os.SEEK_END))
# What is written after something else is not older.
other, older = os.open(path + ".other", os.O_RDWR | os.O_CREAT), 0
for _ in range(100):
    burst(0.003)
    os.pwrite(other, b"x", 0)
    b, a = os.fstat(other).st_mtime_ns, os.fstat(f).st_mtime_ns
    older += b < a
print("older:", older)
P
cat > opens.py <<'P'
# It is open only while it is used; others make it longer while a part is written.
import os, sys, time
path, syncs = sys.argv[1], sys.argv[2] == "fdatasync"
def opened(use):
    f = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        return use(f)
    finally:
        os.close(f)
def others(said):
    print(said, flush=True)
    sys.stdin.readline()
def writes(f):
    ends = time.time() + 0.7
    while time.time() < ends:
        os.pwrite(f, b"x", 100)
        os.fdatasync(f) if syncs else time.sleep(0.05)
def contents(f):
    return os.lseek(f, 0, os.SEEK_END), os.pread(f, 12, 20 << 10), os.pread(f, 4, 38 << 10)
opened(lambda f: (os.pwrite(f, bytes(32 << 10), 0), os.fsync(f)))
opened(contents)
others("written")
opened(writes)
others("burst over")
ends, seen = time.time() + 5, None
while seen != (40 << 10, b"from outside", b"tail") and time.time() < ends:
    time.sleep(0.3)
    seen = opened(contents)
print("opened again:", seen)
P
cat > others.py <<'P'
# What others do: what is to be changed when the program has said so, as Python.
import os, subprocess, sys, time
path, plan = sys.argv[1], eval(sys.argv[2])
p = subprocess.Popen(sys.argv[3:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def put(what, at):
    f = os.open(path, os.O_WRONLY)
    os.pwrite(f, what, at)
    os.close(f)
for line in p.stdout:
    print(line, end="")
    change = plan.get(line.strip())
    if change:
        before, after = change
        before()
        p.stdin.write("\n")
        p.stdin.flush()
        time.sleep(0.1)
        after()
print("status", p.wait())
P
nothing='lambda: None'
for sync in fdatasync fsync; do
    python3 others.py "$PWD/$sync.f" "{
        'written': (lambda: print('the host says the same:', int(open(path + '.time').read()) == os.stat(path).st_mtime_ns),
            lambda: [(put(b'from outside', 200 << 10), time.sleep(0.4)) for _ in range(4)]),
        'burst over': (lambda: put(b'after', 210 << 10), $nothing),
        'longer?': (lambda: os.truncate(path, 300 << 10), $nothing),
    }" $RUN /usr/bin/python3 writes.py "$PWD/$sync.f" $sync
done
for sync in fdatasync none; do
    python3 others.py "$PWD/$sync.f" "{
        'written': ($nothing, lambda: (put(b'from outside', 20 << 10), put(b'tail', 38 << 10), os.truncate(path, 40 << 10))),
        'burst over': ($nothing, $nothing),
    }" $RUN /usr/bin/python3 opens.py "$PWD/$sync.f" $sync
done
rm -f ./*.py ./*.f*
