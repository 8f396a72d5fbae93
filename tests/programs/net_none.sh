# options: --net none
# needs: python3
# A network of the cell's own: programs in it reach each other, nothing outside, and nobody reaches them.
cat > talk.py <<'END'
import asyncio, errno, os, socket, sys

async def echo(reader, writer):
    while data := await reader.read(1000):
        writer.write(data.upper())
    writer.close()

async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for n in range(20):
        r, w = await asyncio.open_connection("127.0.0.1", port)
        w.write(b"hello %d" % n)
        print(await r.read(1000))
        w.close()
    server.close()

asyncio.run(main())
a, b = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
a.bind(("127.0.0.1", 0))
b.sendto(b"datagram", a.getsockname())
print(a.recvfrom(100)[0])
s = socket.socket()
s.bind(("127.1.2.3", 0))
print(s.getsockname()[0])
try:
    socket.create_connection(("127.0.0.1", 1), timeout=5)
except OSError as e:
    print(errno.errorcode[e.errno])
END
$RUN /usr/bin/python3 talk.py
# What listens outside is not there, and what is outside is not reached.
cat > listen.py <<'END'
import socket, sys
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
open("listening", "w").close()
s.accept()
print("somebody came")
END
cat > try.py <<'END'
import errno, socket, sys
for address in ("127.0.0.1", int(sys.argv[1])), ("192.0.2.1", 80):
    try:
        socket.create_connection(address, timeout=5)
    except OSError as e:
        print(errno.errorcode[e.errno])
END
/usr/bin/python3 listen.py "$PORT" &
pid=$!
until [ -e listening ]; do sleep 0.05; done
if [ "$SIDE" = cell ]; then
    $RUN /usr/bin/python3 try.py "$PORT"
else
    # As without a network.
    printf '%s\n' ECONNREFUSED ENETUNREACH
fi
kill $pid
wait $pid || echo "status $?"
