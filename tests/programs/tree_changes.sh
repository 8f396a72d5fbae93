# Threads that change one tree, each its own names of shared directories: what a change has made of attributes is seen at once.
# needs: python3
# timeout: 120
cat > changes.py <<'END'
import os, random, stat, sys, threading

THREADS, STEPS = 4, 700
wrong = []

def check(what, is_so, should):
    if is_so != should and len(wrong) < 20:
        wrong.append(f'{what}: {is_so}, should be {should}')

class Model(threading.Thread):
    def __init__(self, number):
        super().__init__()
        self.r, self.me = random.Random(number), number
        # Names to files, and files: mode, size, time, names.
        self.names, self.dirs, self.made = {}, 0, 0
        self.mine = f'own{number}'
        os.mkdir(self.mine)

    def name(self):
        self.made += 1
        return f'{self.r.choice(["shared", "shared/sub", self.mine])}/{self.me}_{self.made}'

    def some(self):
        return self.r.choice(sorted(self.names)) if self.names else None

    def see(self, name):
        f, s = self.names[name], os.stat(name)
        check(f'mode of {name}', stat.S_IMODE(s.st_mode), f['mode'])
        check(f'size of {name}', s.st_size, f['size'])
        check(f'names of {name}', s.st_nlink, sum(1 for other in self.names.values() if other is f))
        if f['time'] is not None:
            check(f'time of {name}', s.st_mtime_ns, f['time'])

    def step(self):
        do, name = self.r.randrange(12), self.some()
        if do <= 2 or name is None:
            name, mode, size = self.name(), self.r.choice([0o600, 0o644, 0o444, 0o640]), self.r.choice([0, 1, 100, 5000, 70000])
            dir = os.path.dirname(name)
            fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
            os.write(fd, b'a' * size)
            check('what was written', os.pread(fd, 1 << 20, 0), b'a' * size)
            os.close(fd)
            self.names[name] = {'mode': mode, 'size': size, 'time': None}
            check(f'{name} in its directory', os.path.basename(name) in os.listdir(dir), True)
        elif do == 3:
            self.names[name]['mode'] = mode = self.r.choice([0o600, 0o755, 0o400])
            os.chmod(name, mode)
        elif do == 4:
            new = self.name()
            os.rename(name, new)
            self.names[new] = self.names.pop(name)
            check(f'{name} after it was renamed', os.path.exists(name), False)
            name = new
        elif do == 5:
            new = self.name()
            os.link(name, new)
            self.names[new] = self.names[name]
            self.see(new)
        elif do == 6:
            os.unlink(name)
            f = self.names.pop(name)
            check(f'{name} after it was removed', os.path.lexists(name), False)
            name = next((other for other, g in self.names.items() if g is f), None)
        elif do == 7:
            self.names[name]['time'] = t = self.r.randrange(10**18)
            os.utime(name, ns=(t, t))
        elif do == 8:
            self.names[name]['size'] = size = self.r.choice([0, 10, 100000])
            os.truncate(name, size)
            self.names[name]['time'] = None
        elif do == 9:
            with open(name, 'ab') as f:
                f.write(b'more')
            self.names[name]['size'] += 4
            self.names[name]['time'] = None
        elif do == 10:
            self.dirs += 1
            os.mkdir(f'{self.mine}/dir{self.dirs}')
            check('names of the directory', os.stat(self.mine).st_nlink, 2 + self.dirs)
        elif self.dirs:
            os.rmdir(f'{self.mine}/dir{self.dirs}')
            self.dirs -= 1
            check('names of the directory', os.stat(self.mine).st_nlink, 2 + self.dirs)
        if name:
            self.see(name)
            # Of a target that replaces another.
            if do == 4 and len(self.names) > 2:
                victim = self.some()
                if victim != name:
                    if self.names[victim] is not self.names[name]:
                        os.rename(name, victim)
                        self.names[victim] = self.names.pop(name)
                    name = victim
                    self.see(name)

    def run(self):
        try:
            for _ in range(STEPS):
                self.step()
            for name in self.names:
                self.see(name)
        except OSError as e:
            wrong.append(repr(e))

os.umask(0o22)
os.makedirs('shared/sub')
threads = [Model(n) for n in range(THREADS)]
for t in threads: t.start()
for t in threads: t.join()
print(*wrong[:20], sep='\n')
for t in threads: print(t.me, len(t.names), t.dirs, t.made)
END
$RUN python3 changes.py
# Another process of the host sees all of it.
find shared own? -type f -printf '%p %m %s %n\n' | sort | md5sum
# The host changes it, and takes a name for another file.
echo old > f; $RUN sh -c 'cat f; stat -c %s f'; chmod 600 f; echo longer > g; mv g f; $RUN sh -c 'cat f; stat -c "%s %a" f'
$RUN sh -c 'umask 077; : > h; stat -c %a h; echo x > h; stat -c %s h; chmod 0444 h; echo y 2> /dev/null >> h; stat -c "%s %a" h; mkfifo p; ln -s h l; ln h m; stat -c "%F %h" p l m; rm m; stat -c %h h'
# What is written after a name was changed shows at once, too, and its times don't go back.
$RUN python3 -c '
import os, time
fd = os.open("t1", os.O_CREAT | os.O_RDWR)
os.write(fd, b"a" * 5000); os.rename("t1", "t2"); before = os.fstat(fd).st_mtime_ns
time.sleep(0.05); os.write(fd, b"b" * 9000); written = os.fstat(fd).st_mtime_ns; os.fsync(fd)
a = os.fstat(fd); now = time.time_ns(); time.sleep(0.6); b = os.fstat(fd)
print(a.st_size, a.st_mtime_ns > before, written - 30000000 < a.st_mtime_ns < now + 30000000, (a.st_mtime_ns, a.st_ctime_ns, a.st_blocks) == (b.st_mtime_ns, b.st_ctime_ns, b.st_blocks))'
# A file that is replaced is always there, and what was opened can be read: beside a thread that replaces it, and beside another process of the host.
cat > replaced.py <<'END'
import os, sys, threading
LAST = 1000

def replace():
    for n in range(1, LAST + 1):
        with open('new', 'w') as f: f.write(f'{n:08}')
        os.rename('new', 'replaced')

def look():
    before, wrong = 0, []
    while before < LAST and len(wrong) < 5:
        try:
            fd = os.open('replaced', os.O_RDONLY)
            found = int(os.pread(fd, 100, 0)), os.fstat(fd).st_size
            os.close(fd)
            if found[0] < before or found[1] != 8: wrong.append((before, found))
            before = found[0]
        except (OSError, ValueError) as e:
            wrong.append(repr(e))
    print(sys.argv[1], wrong)

if sys.argv[1] == 'replace':
    replace()
else:
    with open('replaced', 'w') as f: f.write(f'{0:08}')
    if sys.argv[1] == 'thread': threading.Thread(target=replace).start()
    else: open('begun', 'w').close()
    look()
END
$RUN python3 replaced.py thread
(until [ -e begun ]; do sleep 0.01; done; exec python3 replaced.py replace) &
$RUN python3 replaced.py other
wait
# The same of files that were read before, and opened again later.
cat > kept.py <<'END'
import mmap, os, time

def see(fd, maps):
    a = os.fstat(fd)
    seen = [os.pread(fd, 300000, 0)[:3], len(os.pread(fd, 300000, 0)), os.pread(fd, 200000, 4096), a.st_size, a.st_nlink]
    again = os.open(f'/proc/self/fd/{fd}', os.O_RDONLY)
    seen.append(os.read(again, 3))
    os.close(again)
    if maps: seen.append(mmap.mmap(fd, 0, prot=mmap.PROT_READ)[4000:4003])
    return seen

names = ['kept', 'kept_empty', 'kept_host', 'kept_host_empty']
for name in names:
    with open(name, 'w') as f: f.write('' if 'empty' in name else name[:4] * 1024)
    with open(name) as f: f.read()
time.sleep(1.5)
fds = {name: os.open(name, os.O_RDONLY) for name in names}
for name in names[:2]:
    with open('new', 'w') as f: f.write('new ' * 2000)
    os.rename('new', name)
    print(name, see(fds[name], 'empty' not in name), open(name).read(3))
open('kept_begun', 'w').close()
while not os.path.exists('kept_done'): time.sleep(0.01)
for name in names[2:]: print(name, see(fds[name], False))
time.sleep(0.5)
for name in names: print(name, see(fds[name], False), os.path.exists(name))
# The host gives their numbers again.
for n in range(20):
    with open(f'kept{n}', 'w') as f: f.write('other')
for name in names: print(name, see(fds[name], False))
END
(until [ -e kept_begun ]; do sleep 0.01; done; echo new > kept_new; mv kept_new kept_host; rm kept_host_empty; : > kept_done) &
$RUN python3 kept.py
wait
# And of one that grows.
echo one > log
(until [ -e log_begun ]; do sleep 0.01; done; echo two >> log; : > log_done) &
$RUN python3 -c '
import os, time
with open("log") as f: f.read()
time.sleep(1.5)
fd = os.open("log", os.O_RDONLY)
print(os.read(fd, 100))
open("log_begun", "w").close()
while not os.path.exists("log_done"): time.sleep(0.01)
time.sleep(0.5)
print(os.read(fd, 100))'
wait
# Attributes of an open file are that file's, whatever the host has made of its name.
cat > attributes.py <<'END'
import os, sys, time

def say(what, f):
    try: print(what, f())
    except OSError as e: print(what, e.strerror)

for how in 'removed', 'renamed', 'replaced':
    for flags in os.O_RDONLY, os.O_RDWR:
        with open('named', 'w') as f: f.write('hello')
        os.setxattr('named', b'user.a', b'first')
        with open('named') as f: f.read()
        fd = os.open('named', flags)
        open(f'{how}_{flags}_begun', 'w').close()
        while not os.path.exists(f'{how}_{flags}_done'): time.sleep(0.01)
        print(how, flags)
        say('xattr', lambda: os.getxattr(fd, b'user.a'))
        say('chmod', lambda: os.fchmod(fd, 0o640))
        say('times', lambda: os.utime(fd, (5, 5)))
        say('set', lambda: os.setxattr(fd, b'user.b', b'second'))
        say('remove', lambda: os.removexattr(fd, b'user.a'))
        say('xattrs', lambda: os.listxattr(fd))
        a = os.fstat(fd)
        print(oct(a.st_mode), a.st_mtime, a.st_nlink)
        os.close(fd)
        for name in 'named', 'other':
            if os.path.exists(name): print(name, oct(os.stat(name).st_mode), os.listxattr(name))
END
(for how in removed renamed replaced; do for flags in 0 2; do
    until [ -e ${how}_${flags}_begun ]; do sleep 0.01; done
    case $how in
        removed) rm named ;;
        renamed) mv named other ;;
        replaced) echo other > new_one; mv new_one named ;;
    esac
    sleep 0.5
    : > ${how}_${flags}_done
done; done) &
$RUN python3 attributes.py
wait
