# needs: python3 coreutils
# Pseudo terminals from Python, with programs on them.
# timeout: 60
cat > talk.py <<'END'
import os, pty, select, subprocess, termios, tty

master, slave = pty.openpty()
termios.tcsetwinsize(slave, (30, 90))

def until(what):
    text = b""
    while what not in text:
        if not select.select([master], [], [], 10)[0]:
            break
        text += os.read(master, 1000)
    return text

def on_it(*command):
    return subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)

print(os.isatty(slave), os.ttyname(slave).startswith("/dev/pts/"))
p = on_it("stty", "size")
print(until(b"90\r\n"), p.wait())
p = on_it("/usr/bin/tty", "-s")
print(p.wait())
p = on_it("head", "-n", "1")
os.write(master, b"typd\x7fed\r")
print(until(b"ed\r\ntyped\r\n"), p.wait())
p = on_it("stty", "raw", "-echo")
print(p.wait())
p = on_it("head", "-c", "3")
os.write(master, b"\x03\x04x")
print(until(b"x"), p.wait())
p = on_it("stty", "sane")
print(p.wait())
# A session of its own: what is typed can interrupt it.
p = subprocess.Popen(["/usr/bin/python3", "-c", "import fcntl, termios, time; fcntl.ioctl(0, termios.TIOCSCTTY, 0); print('ready', flush=True); time.sleep(20)"],
                     stdin=slave, stdout=slave, stderr=subprocess.DEVNULL, start_new_session=True)
print(until(b"ready\r\n"))
os.write(master, b"\x03")
print(p.wait(), until(b"^C"))
os.close(slave)
try:
    print(os.read(master, 100))
except OSError as e:
    print(e.errno)
END
$RUN /usr/bin/python3 talk.py
