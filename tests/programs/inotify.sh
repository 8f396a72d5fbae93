# needs: inotify-tools coreutils python3
# Watching files: inotifywait, tail -f, and Python by ctypes.
cat > watch.py <<'END'
import os, subprocess, sys, time

def line(p):
    return p.stdout.readline().decode().rstrip()

os.mkdir("d")
w = subprocess.Popen(["inotifywait", "-m", "-r", "--format", "%w %e %f", "d"],
                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
while b"established" not in w.stderr.readline():
    pass
with open("d/a", "w") as f:
    f.write("text")
for _ in range(4):
    print(line(w))
os.mkdir("d/sub")
print(line(w), line(w))
# It watches the new directory from when it has seen it.
while True:
    open("d/sub/x", "w").close()
    l = line(w)
    os.unlink("d/sub/x")
    if l.endswith("CREATE x"):
        print(l)
        break
w.terminate()
print(w.wait())

w = subprocess.Popen(["inotifywait", "-e", "close_write", "d/a"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
while b"established" not in w.stderr.readline():
    pass
subprocess.run(["cp", "/etc/hostname", "d/a"])
print(line(w), w.wait())

w = subprocess.Popen(["inotifywait", "-q", "-t", "1", "d/a"], stdout=subprocess.PIPE)
print(w.wait())

open("d/log", "w").close()
t = subprocess.Popen(["tail", "-f", "d/log"], stdout=subprocess.PIPE)
time.sleep(0.2)
with open("d/log", "a") as f:
    for n in range(20):
        f.write("line %d\n" % n)
        f.flush()
        print(line(t))
t.terminate()
print(t.wait())
END
$RUN /usr/bin/python3 watch.py
