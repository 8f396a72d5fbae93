# Standard streams are the cell's as they are: pipes, files, nothing at all.
# needs: python3
printf 'one\ntwo\n' | $RUN cat
printf 'one\ntwo\nthree\n' > lines
$RUN sort -r < lines > sorted
$RUN sh -c 'echo out; echo err >&2' > out 2> err
$RUN sh -c 'echo both; echo streams >&2' > both 2>&1
$RUN sh -c 'read a; read b; echo "$b $a"' < lines
# Appended, and written from where the file was.
$RUN echo more >> sorted
{ echo first; $RUN echo second; echo third; } > order
{ read -r line; echo "shell $line"; $RUN head -n 1; read -r line; echo "shell $line"; } < lines
printf 'a\nb\nc\n' | { $RUN sh -c 'read -r x; echo "cell $x"'; cat; }
# A file is one: it has a size, a position, and can be read where one wants.
$RUN tail -n 1 < lines
$RUN wc -c < lines
$RUN stat -L -c '%F %s' - < lines
$RUN /usr/bin/python3 -c '
import os, select, sys
print(os.lseek(0, 4, 0), os.read(0, 3), os.pread(0, 3, 0), os.lseek(0, 0, 1), os.lseek(0, -2, 2), os.read(0, 9))
print(select.select([0], [], [], 0)[0], os.fstat(0).st_size, sys.stdin.seekable())
' < lines
$RUN /usr/bin/python3 -c '
import os
os.write(1, b"0123456789")
os.fsync(1)
os.ftruncate(1, 9)
print(os.lseek(1, 3, 0), os.write(1, b"abc"), os.pwrite(1, b"Z", 9), os.lseek(1, 0, 1), os.lseek(1, 0, 2), file=__import__("sys").stderr)
' > written 2> said
$RUN /usr/bin/python3 -c '
import mmap
m = mmap.mmap(0, 0, prot=mmap.PROT_READ)
print(m[:], m.find(b"two"))
c = mmap.mmap(0, 0, access=mmap.ACCESS_COPY)
c[0] = 88
print(c[:3], m[:3])
' < lines
# Asking whether there is something takes nothing away.
printf 'x\ny\n' | { $RUN /usr/bin/python3 -c 'import select; print(select.select([0], [], [], 5)[0])'; cat; }
# The reader goes away.
$RUN sh -c 'while :; do echo y; done' 2> /dev/null | head -3 || true
head -c 300000 /dev/zero | $RUN wc -c
$RUN head -c 300000 /dev/zero | wc -c
# How they were opened is to be seen, and what is closed isn't there.
cat > flags.py <<'END'
import fcntl, os
said = []
for fd in 0, 1, 2:
    try:
        said.append(oct(fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)))
    except OSError as e:
        said.append(e.strerror)
with open('flags', 'a') as f:
    print(f.fileno(), *said, file=f)
END
$RUN /usr/bin/python3 flags.py < lines >> sorted 2>&-
$RUN /usr/bin/python3 flags.py <&- > said
$RUN /usr/bin/python3 flags.py <&- >&- 2>&-
printf 'read and written\n' > updated
$RUN /usr/bin/python3 flags.py <> updated 2>&0
$RUN sh -c 'read -r a; echo "$a again" >&0' <> updated
cat flags updated
$RUN cat <&- 2>&1 || echo "cat: $?"
$RUN cat lines 2>&1 >&- || echo "cat: $?"
$RUN sh -c 'echo lost' 2>&1 >&- || echo "sh: $?"
# What is written behind what is read would never end.
cp lines grows
$RUN cat grows >> grows 2> said || echo "cat: $?"
grep -o 'input file is output file' said
