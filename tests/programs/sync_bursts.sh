# A file of which parts are written to the device one after another, as databases do with their logs: its times, its size and what others
# change in it meanwhile and afterwards, without locks. On Linux all of it is on the host.
# needs: python3
# timeout: 120
cat > inner.py <<'P'
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
    return "not seen" if changes else n > 10

def times():
    a, b = os.fstat(f), os.stat(path)
    assert (a.st_mtime_ns, a.st_size) == (b.st_mtime_ns, b.st_size), (a, b)
    return a

before = times()
print("many", burst(0.3), flush=True)
after = times()
assert after.st_mtime_ns > before.st_mtime_ns and abs(after.st_mtime - time.time()) < 0.2, (after, time.time())
# Nobody writes any more, and nothing changes.
time.sleep(0.5)
assert times() == after, (times(), after)
with open(path + ".time", "w") as t:
    t.write(str(after.st_mtime_ns))
print("written", flush=True)
sys.stdin.readline()
print("others, during a burst:", burst(5, b"from outside"), flush=True)
burst(0.2)
print("burst over", flush=True)
sys.stdin.readline()
ends = time.time() + 5
while os.pread(f, 5, 210 << 10) != b"after" and time.time() < ends:
    time.sleep(0.02)
print("others, after a burst:", os.pread(f, 5, 210 << 10), flush=True)
burst(0.2)
print("longer?", flush=True)
sys.stdin.readline()
ends = time.time() + 5
while os.fstat(f).st_size != 300 << 10 and time.time() < ends:
    time.sleep(0.02)
print("size", os.fstat(f).st_size, os.lseek(f, 0, os.SEEK_END))
P
cat > outer.py <<'P'
import os, subprocess, sys, time
path = sys.argv[1]
p = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def until(what):
    for line in p.stdout:
        print(line, end="")
        if line.strip() == what:
            return
    sys.exit(f"no {what}")
def put(what, at):
    f = os.open(path, os.O_WRONLY)
    os.pwrite(f, what, at)
    os.close(f)
def go():
    p.stdin.write("\n")
    p.stdin.flush()
until("written")
told = int(open(path + ".time").read())
print("the host says the same time:", told == os.stat(path).st_mtime_ns)
go()
time.sleep(0.1)
put(b"from outside", 200 << 10)
until("burst over")
put(b"after", 210 << 10)
go()
until("longer?")
os.truncate(path, 300 << 10)
go()
print(p.stdout.read(), end="")
p.stdin.close()
print("status", p.wait())
P
for sync in fdatasync fsync; do
    python3 outer.py "$PWD/$sync.f" $RUN /usr/bin/python3 inner.py "$PWD/$sync.f" $sync
    rm -f $sync.f.time
done
rm -f inner.py outer.py *.f
