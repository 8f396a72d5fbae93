# Files of the host that are mapped shared: what is written one way is read the others, and the host gets it.
# needs: python3
seq 1 100000 > data; seq 1 30000 > read; head -c 5000 data > small
$RUN /usr/bin/python3 -c '
import hashlib, mmap, os
f = open("data", "r+b"); fd = f.fileno()
m = mmap.mmap(fd, 0); n = mmap.mmap(fd, 100000, offset=65536)
print(len(m), m[:6], n[4464:4470])
m[0:5] = b"HELLO"; m[70000:70003] = b"abc"
print(os.pread(fd, 6, 0), n[4464:4470], open("data", "rb").read(6))
print(os.pwrite(fd, b"by write", 70010), m[70010:70018], n[4474:4482])
p = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY); p[0:5] = b"copy!"; print(p[:6], m[:6])
m.flush(); os.fsync(fd)
s = open("small", "r+b"); t = mmap.mmap(s.fileno(), 0); t[4990:5000] = b"0123456789"
s.truncate(4995); print(os.stat("small").st_size); s.truncate(9000); print(os.pread(s.fileno(), 20, 4985))
r = mmap.mmap(os.open("read", os.O_RDONLY), 0, prot=mmap.PROT_READ)
print(hashlib.md5(r).hexdigest(), r.find(b"\n30000"))
try: mmap.mmap(os.open("read", os.O_RDONLY), 0)
except OSError as e: print(e)
# Grown after it was mapped, and gone while it is.
g = os.open("grown", os.O_RDWR | os.O_CREAT); os.ftruncate(g, 4096); a = mmap.mmap(g, 4096); a[:3] = b"one"
os.ftruncate(g, 200000); a.resize(200000) if hasattr(a, "resize") else None; a[199990:199993] = b"end"; os.close(g)
u = os.open("gone", os.O_RDWR | os.O_CREAT); os.ftruncate(u, 70000); b = mmap.mmap(u, 0); os.unlink("gone")
b[69999] = 88; print(os.pread(u, 2, 69998), b[:2])
'
md5sum data small grown
# Not unmapped, but ended.
$RUN /usr/bin/python3 -c '
import mmap, os, signal
f = open("data", "r+b"); m = mmap.mmap(f.fileno(), 0); m[300000:300007] = b"ends it"; os.kill(os.getpid(), signal.SIGKILL)
' 2> /dev/null || echo "status $?"
md5sum data
# What was written while it was mapped is the next one's to read.
$RUN /usr/bin/python3 -c 'print(open("data", "rb").read()[300000:300007])'
