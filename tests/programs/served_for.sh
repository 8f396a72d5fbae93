# Who asks the host for a file is who has it then, also where many ask at once and for others than before: what is served for one user
# is never done as another.
# needs: python3
cat > users.py <<'END'
import os, threading

wrong = []

def ask(me, n):
    name = f'{me}/{n}'
    try:
        fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.write(fd, b'x')
        os.fsync(fd)
        os.close(fd)
        os.utime(name)
        os.chmod(name, 0o640)
        os.mkdir(name + 'd')
        owners = [os.stat(path).st_uid for path in (name, name + 'd')]
        if owners != [me, me]: wrong.append(f'{name}: {owners}')
    except OSError as e:
        wrong.append(f'{name}: {e!r}')

def many(me, turn, count):
    threads = [threading.Thread(target=ask, args=(me, f'{turn}_{n}')) for n in range(count)]
    for t in threads: t.start()
    for t in threads: t.join()
    if wrong: print(me, len(wrong), wrong[:3], flush=True)

for me in 1000, 1001, 0:
    os.mkdir(str(me))
    os.chown(str(me), me, me)
# More and more at once, so that more and more serve them.
for count in range(1, 25):
    for turn, me in enumerate((1000, 0, 1001, 0)):
        if os.fork() == 0:
            if me: os.setgid(me), os.setuid(me)
            many(me, f'{count}_{turn}', count)
            os._exit(0)
        os.wait()
print(*(len(os.listdir(str(me))) for me in (1000, 1001, 0)))
END
if [ "$(id -u)" = 0 ]; then
    chmod 755 .
    $RUN python3 users.py
fi
