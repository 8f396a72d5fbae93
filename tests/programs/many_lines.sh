# Standard streams that many lines are written to: whichever way these go, they are all there, in order, and what is wrong is told.
# needs: python3
cat > lines.py <<'END'
import os, sys
n, streams = int(sys.argv[1]), [int(a) for a in sys.argv[2:]] or [1]
for i in range(n):
    for fd in streams:
        os.write(fd, b'line %d of stream %d\n' % (i, fd))
END
# A file, in which others write before and after.
{ echo first; $RUN /usr/bin/python3 lines.py 3000; echo last; } > file
cksum < file
$RUN /usr/bin/python3 lines.py 3000 >> file
cksum < file
# Both streams are one file, or one pipe.
$RUN /usr/bin/python3 lines.py 2000 1 2 > both 2>&1
cksum < both
$RUN /usr/bin/python3 lines.py 2000 1 2 2>&1 | cksum
# A reader that is slow: the pipe is full meanwhile.
$RUN /usr/bin/python3 lines.py 20000 | { sleep 0.3; cksum; }
# Longer than a pipe has room for, behind what leaves some of it.
$RUN /usr/bin/python3 -c '
import os
for i in range(40):
    os.write(1, b"x" * 100)
print(os.write(1, b"y" * 300000), os.write(1, b"z" * 3), file=__import__("sys").stderr)
' 2> said | { sleep 0.2; cksum; }
cat said
# A reader that goes away is a signal, or an error.
$RUN /usr/bin/python3 -c '
import os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
while True:
    os.write(1, b"one more line\n")
' 2> said | head -n 20 | cksum || true
$RUN /usr/bin/python3 -c '
import os, sys
try:
    while True:
        os.write(1, b"one more line\n")
except OSError as e:
    print(e.strerror, file=sys.stderr)
' 2> said | head -n 20 | cksum || true
cat said
# A full disk is told each time.
$RUN /usr/bin/python3 -c '
import os, sys
for i in range(9):
    try:
        print(os.write(1, b"a line\n"), file=sys.stderr)
    except OSError as e:
        print(e.strerror, file=sys.stderr)
' 2>&1 > /dev/full | sort | uniq -c
$RUN /usr/bin/python3 lines.py 100 > /dev/null
# A socket, as a service manager has; its reader is slow.
cat > pair.py <<'END'
import hashlib, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
with subprocess.Popen(sys.argv[1:], stdout=theirs) as p:
    theirs.close()
    time.sleep(0.3)
    all = b''.join(iter(lambda: ours.recv(65536), b''))
print(len(all), hashlib.sha1(all).hexdigest(), p.returncode)
END
/usr/bin/python3 pair.py $RUN /usr/bin/python3 lines.py 20000
# Several processes append whole lines.
$RUN sh -c 'for i in 1 2 3; do /usr/bin/python3 lines.py 700 & done; wait' >> appended
sort appended | uniq -c | awk '{ print $1 }' | sort | uniq -c
rm appended
