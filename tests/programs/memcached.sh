# needs: memcached libmemcached-tools python3
# timeout: 60
# memcached with four threads, over TCP and UDP.
$RUN memcached -u nobody -l 127.0.0.1 -p "$PORT" -U "$PORT" -t 4 -m 64 > "$DIR/log" 2>&1 &
server=$!
python3 - "$PORT" <<'EOF'
import socket, struct, sys, threading, time

port = int(sys.argv[1])
for _ in range(200):
    try:
        s = socket.create_connection(("127.0.0.1", port), 5)
        break
    except OSError:
        time.sleep(0.05)
f = s.makefile("rwb")


def ask(line, data=None):
    f.write(line.encode() + b"\r\n" + (data + b"\r\n" if data is not None else b""))
    f.flush()
    answer = f.readline().decode().strip()
    if answer.startswith("VALUE"):
        n = int(answer.split()[3])
        body = f.read(n + 2)[:-2]
        end = f.readline().decode().strip()
        return (answer, len(body), body[:20], end)
    return answer


print(ask("set a 5 0 3", b"abc"))
print(ask("get a"))
print(ask("add a 0 0 1", b"x"))
print(ask("append a 0 0 2", b"de"))
print(ask("get a"))
print(ask("set n 0 0 2", b"41"), ask("incr n 1"), ask("decr n 100"))
print(ask("delete a"), ask("get a"))
print(ask("set big 0 0 1000000", b"z" * 1000000), ask("get big"))
print(ask("set toobig 0 0 3000000", b"z" * 3000000)[:40])
s.close()
s = socket.create_connection(("127.0.0.1", port), 5)
f = s.makefile("rwb")
print(ask("touch n 100"), ask("gat 100 n"), ask("cas n 0 0 1 99999", b"7"))
print(ask("nonsense"))
print(ask("flush_all"), ask("get n"))


# Four clients at once, each with values of its own.
def client(k, out):
    c = socket.create_connection(("127.0.0.1", port), 5)
    g = c.makefile("rwb")
    good = 0
    for i in range(500):
        value = f"{k}-{i}".encode() * 20
        g.write(f"set c{k}.{i} 0 0 {len(value)}\r\n".encode() + value + b"\r\nget c%d.%d\r\n" % (k, i))
        g.flush()
        assert g.readline() == b"STORED\r\n"
        head = g.readline().split()
        body = g.read(int(head[3]) + 2)[:-2]
        assert g.readline() == b"END\r\n"
        good += body == value
    out[k] = good


out = {}
threads = [threading.Thread(target=client, args=(k, out)) for k in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
print(sorted(out.items()))

# UDP: a frame header of four 16-bit numbers before each datagram.
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.settimeout(5)
ask("set u 0 0 4", b"udp!")
for n in range(50):
    u.sendto(struct.pack("!HHHH", n, 0, 1, 0) + b"get u\r\n", ("127.0.0.1", port))
    data, peer = u.recvfrom(2000)
    head = struct.unpack("!HHHH", data[:8])
    if n in (0, 49):
        print(head, data[8:], peer == ("127.0.0.1", port))
f.write(b"stats settings\r\n")
f.flush()
settings = {}
while True:
    line = f.readline().split()
    if line[0] == b"END":
        break
    settings[line[1]] = line[2]
print(settings[b"num_threads"], settings[b"maxconns"], settings[b"udpport"] != b"0")
EOF
printf 'key\n16 16 1\nvalue\n512 512 1\ncmd\n0 0.1\n1 0.9\n' > "$DIR/load.conf"
memcaslap -s "127.0.0.1:$PORT" -T 1 -c 16 -x 20000 -F "$DIR/load.conf" -v 0.2 | grep -E 'get_misses|verify_misses|verify_failed' || true
kill "$server"
wait "$server" || echo "ended with $?"
rm -f "$DIR/load.conf"
