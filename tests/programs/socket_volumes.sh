# Unix sockets in a volume: between a cell and the host, between two cells, and within one. On Linux all of it is on the host.
# needs: redis-server redis-tools nginx-light curl python3
# timeout: 180
cat > server.py <<'P'
import hashlib, os, socket, struct, sys
kind, path, times = getattr(socket, sys.argv[1]), sys.argv[2], int(sys.argv[3])
s = socket.socket(socket.AF_UNIX, kind)
if kind == socket.SOCK_DGRAM:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
s.bind(path)
os.chmod(path, 0o777)
if kind == socket.SOCK_DGRAM:
    for _ in range(times):
        data, beside, flags, sender = s.recvmsg(100, 64)
        ids = [struct.unpack("3i", c[2])[1:] for c in beside]
        print("datagram", data[:20], len(data), ids, flags & socket.MSG_TRUNC != 0, sender, flush=True)
    sys.exit()
s.listen()
for _ in range(times):
    c, sender = s.accept()
    ids = struct.unpack("3i", c.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1:]
    print("connection", ids, sender, flush=True)
    c.sendall(b"welcome")
    digest, size = hashlib.sha256(), 0
    while got := c.recv(1 << 20):
        digest.update(got)
        size += len(got)
    print("received", size, digest.hexdigest(), flush=True)
    c.sendall(b"end")
    c.close()
P
cat > client.py <<'P'
import os, socket, struct, sys
kind, path, size, user = getattr(socket, sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if user:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
s = socket.socket(socket.AF_UNIX, kind)
s.settimeout(20)
if kind == socket.SOCK_DGRAM:
    print("sent", s.sendto(b"to a name", path))
    s.connect(path)
    print("sent", s.send(b"connected"), s.send(b"y" * size))
    sys.exit()
s.connect(path)
print("peer", struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1:], repr(s.getsockname()))
print(s.recv(100))
data = memoryview(bytes(range(256)) * (size // 256))
while data:
    # A packet has to fit into the buffer.
    data = data[s.send(data[: 1 << 16]):]
s.shutdown(socket.SHUT_WR)
print(s.recv(100), s.recv(100))
P
# Who serves and who asks: the host, or a cell.
for who in host-cell cell-host cell-cell; do
    for kind in SOCK_STREAM SOCK_SEQPACKET SOCK_DGRAM; do
        echo "$who $kind"
        serve=$RUN; ask=$RUN
        case $who in host-*) serve= ;; *-host) ask= ;; esac
        times=2; size=30000000; if [ $kind = SOCK_DGRAM ]; then times=6; size=5000; fi
        $serve python3 server.py $kind s $times > served & pid=$!
        until [ -S s ] && [ -n "$(find s -perm 777)" ]; do sleep 0.02; done
        # To listen comes a moment later.
        for user in 0 1234; do
            until $ask python3 client.py $kind s $size $user > asked 2>&1; do
                grep -q 'Connection refused' asked
                sleep 0.05
            done
            cat asked
        done
        wait $pid
        cat served
        # Its name is still there, and nobody has it.
        $ask python3 client.py $kind s 1 0 2>&1 | tail -n 1 || true
        rm s
    done
done
# A socket alone, as the volume of its own that others give for it; and without rights.
python3 server.py SOCK_STREAM s 1 > served & pid=$!
until [ -S s ] && [ -n "$(find s -perm 777)" ]; do sleep 0.02; done
chmod 600 s
$RUN python3 client.py SOCK_STREAM s 1 1234 2>&1 | tail -n 1 || true
until $RUN python3 client.py SOCK_STREAM s 512 0 > asked 2>&1; do sleep 0.05; done
cat asked
wait $pid
cat served
rm s
# Who takes datagrams slowly has others wait, and they don't try all the time.
python3 - <<'P' > served & slow=$!
import socket, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("s")
time.sleep(1)
s.settimeout(5)
print(sum(len(s.recv(100)) for _ in range(1500)))
P
until [ -S s ]; do sleep 0.02; done
$RUN python3 - <<'P'
import os, select, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.connect("s")
s.setblocking(False)
sent = waited = 0
while sent < 1500:
    try:
        s.send(b"x" * 10)
        sent += 1
    except BlockingIOError:
        waited += 1
        select.select([], [s], [])
print(sent, waited > 0, waited < 10000)
P
wait $slow
cat served
rm s
# A server of many at a time, with clients of its own, of other cells' and of the host's, which go on together.
cat > many.py <<'P'
import asyncio, os, sys
async def serve(reader, writer):
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
    writer.close()
async def ask(n):
    reader, writer = await asyncio.open_unix_connection("m")
    for i in range(200):
        writer.write(b"client %d line %d\n" % (n, i))
        if await reader.readline() != b"CLIENT %d LINE %d\n" % (n, i):
            raise ValueError("another's line")
    writer.close()
async def main():
    if sys.argv[1] == "serve":
        server = await asyncio.start_unix_server(serve, "m")
        await asyncio.gather(*(ask(n) for n in range(5)))
        open("ready", "w").close()
        while not os.path.exists("stop"):
            await asyncio.sleep(0.05)
        server.close()
    else:
        await asyncio.gather(*(ask(n) for n in range(20)))
    print(sys.argv[1], "done")
asyncio.run(main())
P
$RUN python3 many.py serve & server=$!
until [ -e ready ]; do sleep 0.02; done
$RUN python3 many.py ask & one=$!
python3 many.py ask & two=$!
wait $one; wait $two
touch stop
wait $server
rm -f m ready stop
# Servers as there are: each asked from the other side.
redis-server --port 0 --unixsocket h.sock --save '' > /dev/null & host=$!
$RUN redis-server --port 0 --unixsocket c.sock --save '' > /dev/null & cell=$!
until redis-cli -s c.sock ping > /dev/null 2>&1 && $RUN redis-cli -s h.sock ping > /dev/null 2>&1; do sleep 0.05; done
redis-cli -s c.sock set from host
$RUN redis-cli -s c.sock get from
$RUN redis-cli -s h.sock set from cell
redis-cli -s h.sock get from
redis-benchmark -s c.sock -t set,get -n 20000 -c 20 -q | grep -c 'requests per second'
redis-cli -s c.sock shutdown nosave || true
$RUN redis-cli -s h.sock shutdown nosave || true
wait $host $cell || true
ls
mkdir tmp www
head -c 3000000 /dev/urandom > www/file
printf '%s\n' 'daemon off; master_process off; pid tmp/pid; error_log stderr;' 'events {}' 'http { access_log off;' \
    "client_body_temp_path $DIR/tmp/a; proxy_temp_path $DIR/tmp/b; fastcgi_temp_path $DIR/tmp/c;" \
    "uwsgi_temp_path $DIR/tmp/d; scgi_temp_path $DIR/tmp/e;" \
    "server { listen unix:$DIR/n.sock; root $DIR/www; } }" > nginx.conf
$RUN /usr/sbin/nginx -p "$DIR" -c "$DIR/nginx.conf" 2> /dev/null & nginx=$!
until curl -s --unix-socket n.sock http://cell/file -o got; do sleep 0.05; done
cmp got www/file && echo same
kill -QUIT $nginx
wait $nginx || true
rm -rf www tmp got nginx.conf n.sock
