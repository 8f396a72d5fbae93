# What programs show of the sockets that a program has: by /proc/net, which has only this cell's in a cell.
# needs: net-tools lsof iproute2
# options: --net host
cat > show.sh <<'P'
port=$1
head -qn 1 /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 /proc/net/unix
python3 - $port <<'S'
import os, socket, sys
port = int(sys.argv[1])
def listen(family, address):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        s.setsockopt(41, 26, 1)
    s.bind((address, port)); s.listen(5)
    return s
four, six = listen(socket.AF_INET, "127.0.0.1"), listen(socket.AF_INET6, "::1")
client = socket.create_connection(("127.0.0.1", port))
server = four.accept()[0]
client.send(b"seven b"); server.setblocking(True)
# Until it has arrived.
server.recv(1, socket.MSG_PEEK)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(("0.0.0.0", port))
udp6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); udp6.setsockopt(41, 26, 1); udp6.bind(("::", port))
path = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM); path.bind("socket-of-ours"); path.listen(1)
name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); name.bind("\0ours-%d" % port)
none = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
mine = {os.readlink("/proc/self/fd/" + f)[8:-1] for f in os.listdir("/proc/self/fd") if os.path.lexists("/proc/self/fd/" + f) and os.readlink("/proc/self/fd/" + f).startswith("socket:[")}
own, other = (":%04X" % s.getsockname()[1] for s in (four, client))
for f in ["tcp", "tcp6", "udp", "udp6"]:
    rows = []
    for l in open("/proc/net/" + f).read().split("\n")[1:]:
        w = l.split()
        if len(w) > 9 and w[9] in mine:
            rows.append(" ".join(w[1:9]).replace(own, ":OWN").replace(other, ":OTHER") + " %d columns" % len(w))
    print(f, *sorted(rows), sep="\n  ")
for l in open("/proc/net/unix"):
    w = l.split()
    if w[6] in mine:
        print("unix", *w[1:6], *(name.replace(str(port), "OWN") for name in w[7:]))
sys.stdout.flush()
for c in ["netstat -ltn | grep -c ':%d .*LISTEN'", "netstat -tn | grep -c ':%d .*ESTABLISHED'", "netstat -uln | grep -c ':%d '", "netstat -xl | grep -c socket-of-ours", "lsof -nP -iTCP:%d -sTCP:LISTEN | grep -c LISTEN", "lsof -nP -iUDP:%d | grep -c UDP"]:
    os.system((c % port if "%d" in c else c) + " 2>&1")
# ss(8), by sock_diag(7): states, what waits, whose they are.
for c in ["-Htln", "-Htan state established", "-Htln -4 sport = :%d", "-Huan", "-Hxl src socket-of-ours", "-Htnp state established dport = :%d"]:
    print("ss", c.replace("%d", "OWN"))
    sys.stdout.flush()
    out = os.popen("ss " + (c % port if "%d" in c else c) + " 2>&1").read()
    for n, l in enumerate(sorted(l for l in out.split("\n") if ":%d" % port in l or "socket-of-ours" in l or "annot" in l)):
        l = l.replace(":%d" % client.getsockname()[1], ":OTHER").replace(":%d" % port, ":OWN").replace("pid=%d" % os.getpid(), "pid=MINE")
        w = l.split()
        print(" ", *(w[:5] if "socket-of-ours" in l else w))
import struct
def ask(kind, body, flags=1):
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)
    s.send(struct.pack("IHHII", 16 + len(body), kind, flags, 7, 0) + body)
    said = s.recv(1 << 16)
    length, kind, flags, sequence, _ = struct.unpack("IHHII", said[:16])
    return (kind, flags, sequence, struct.unpack("i", said[16:20])[0]) if kind == 2 else (kind, flags, sequence, said[16:18], length >= 88)
def one(a, b, family=2, protocol=6):
    name = lambda s: (struct.pack(">H", s[1]), socket.inet_aton(s[0]) + bytes(12))
    (ap, aa), (bp, ba) = name(a), name(b)
    return struct.pack("BBBBI", family, protocol, 0, 0, 0xfff) + ap + bp + aa + ba + bytes(4) + b"\xff" * 8
print(ask(20, one(client.getsockname(), client.getpeername())))
print(ask(20, one(client.getsockname(), ("127.0.0.1", 1))))
print(ask(20, one(four.getsockname(), ("0.0.0.0", 0)))[:3])
print(ask(20, one(four.getsockname(), ("0.0.0.0", 0), protocol=99)))
print(ask(20, b"\x02\x06"), ask(20, b"\x63" + bytes(60)), ask(20, b"\x0f" + bytes(60)), ask(30, bytes(60)))
ino = os.fstat(path.fileno()).st_ino
unix = lambda ino: struct.pack("BBHIII", 1, 0, 0, 0xfff, ino, 1) + b"\xff" * 8
print(ask(20, unix(ino))[:4], ask(20, unix(1 << 31)))
S
P
$RUN sh show.sh "$PORT"; echo $?
# The network's interfaces, and tables of the network as a whole.
cat > interfaces.py <<'P'
import os
of = "/sys/class/net/"
def said(path):
    try:
        return open(path).read().split()
    except OSError as e:
        return e.strerror
for name in sorted(os.listdir(of)):
    there, link = set(os.listdir(of + name)), os.readlink(of + name)
    print(name, "virtual" in link, link.endswith("/net/" + name), os.path.realpath(of + name) == os.path.realpath(of + link))
    for a in "addr_assign_type addr_len address broadcast carrier dev_id dormant duplex flags ifalias ifindex iflink mtu operstate speed tx_queue_len type uevent".split():
        print(" ", a, a in there, said(of + name + "/" + a))
    print(" ", os.readlink(of + name + "/subsystem").endswith("/class/net"), os.path.samefile(of + name + "/subsystem", of))
    counts = os.listdir(of + name + "/statistics")
    print(" ", all(said(of + name + "/statistics/" + c)[0].isdigit() for c in counts), {"rx_bytes", "tx_dropped", "collisions"} <= set(counts))
print(said(of + "none-such/mtu"), said(of + "lo/none-such"), os.path.exists("/sys/devices/virtual/net/lo/mtu"))
dev = {l.split(":")[0].strip(): l.split(":")[1].split()[0] for l in open("/proc/net/dev").readlines()[2:]}
print(sorted(dev) == sorted(os.listdir(of)), int(dev["lo"]) <= int(said(of + "lo/statistics/rx_bytes")[0]))
for table in "arp igmp netstat snmp sockstat".split():
    print(table, open("/proc/net/" + table).readline().split()[:2])
P
$RUN python3 interfaces.py; echo $?
$RUN tc qdisc show dev lo; echo $?
