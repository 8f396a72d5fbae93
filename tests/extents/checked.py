"""Keeps memory of all kinds whose contents it knows, and changes and checks it, until its input ends.

Its threads have buffers of their own, anonymous memory that is shared, files in memory, mapped and not, and files of the host.
Says how much it has checked and what was wrong, at the end and when, for each line, it has taken memory anew behind much else.
"""
import hashlib, mmap, os, random, subprocess, sys, threading, time

MIB = 1 << 20
stop = threading.Event()
checks, bad = [0] * 4, []
# How often all of the first three threads' memory was to be made anew, and was.
anew, made = 0, [0] * 3


def digest(data):
    return hashlib.blake2b(data, digest_size=16).digest()


def expect(who, what, data, want):
    checks[who] += 1
    if digest(data) != want:
        bad.append(what)


def fill(r, buffer):
    piece = r.randbytes(r.randrange(1, 9999))
    at = r.randrange(len(buffer) - len(piece))
    buffer[at:at + len(piece)] = piece


def buffers(who, budget):
    """Memory that comes and goes: of the allocator's, private mappings, and shared ones, also of a file in memory."""
    r = random.Random(who)
    kept, old, mine = [], [], 0
    while not stop.is_set():
        if mine != anew:
            # What there was goes when there is as much again, which lies elsewhere then.
            kept, old, mine = [], kept, anew
        if mine != made[who] and sum(len(b) for b, _, _ in kept) >= budget:
            for buffer, want, kind in old:
                expect(who, f'old buffer of kind {kind}', buffer, want)
            old, made[who] = [], mine
        if sum(len(b) for b, _, _ in kept) < budget:
            size, kind = r.randrange(16 << 10, 5 * MIB), r.randrange(4)
            if kind == 0:
                buffer = bytearray(size)
            elif kind == 1:
                buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            elif kind == 2:
                buffer = mmap.mmap(-1, size)
            else:
                file = os.memfd_create('checked')
                os.ftruncate(file, size)
                buffer = mmap.mmap(file, size)
                os.close(file)
            for _ in range(20):
                fill(r, buffer)
            kept.append((buffer, digest(buffer), kind))
            continue
        n = r.randrange(len(kept))
        buffer, want, kind = kept[n]
        expect(who, f'buffer of kind {kind}', buffer, want)
        if r.randrange(4) == 0:
            kept.pop(n)
        else:
            fill(r, buffer)
            kept[n] = buffer, digest(buffer), kind


def files(who, budget):
    """Files in memory, written, read, some of them mapped; and what the host has."""
    r = random.Random(who)
    names, want, mapped = [], {}, {}
    host = [m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)]
    host_want = {}
    for n in range(budget // MIB):
        names.append(f'/dev/shm/{who}.{n}')
    while not stop.is_set():
        if made[who] != anew:
            mapped.clear()
            for name in want:
                os.unlink(name)
            want.clear()
            made[who] = anew
        name = r.choice(names)
        if name not in want or r.randrange(8) == 0:
            mapped.pop(name, None)
            with open(name, 'wb') as f:
                f.write(r.randbytes(r.randrange(1, 2 * MIB)))
            with open(name, 'rb') as f:
                want[name] = digest(f.read())
            if r.randrange(2):
                with open(name, 'r+b') as f:
                    mapped[name] = mmap.mmap(f.fileno(), 0)
        elif name in mapped and r.randrange(2):
            expect(who, 'mapped file', mapped[name], want[name])
            if len(mapped[name]) > 9999:
                fill(r, mapped[name])
            want[name] = digest(mapped[name])
        else:
            with open(name, 'rb') as f:
                expect(who, 'file', f.read(), want[name])
        path = r.choice(host)
        with open(path, 'rb') as f:
            data = f.read()
        expect(who, path, data, host_want.setdefault(path, digest(data)))


def children(who, _):
    """Processes that come and go."""
    child = "import hashlib,sys; b=bytearray(sys.stdin.buffer.read())*9; print(hashlib.blake2b(b,digest_size=16).hexdigest())"
    r = random.Random(who)
    while not stop.is_set():
        data = r.randbytes(r.randrange(1, MIB // 2))
        out = subprocess.run([sys.executable, '-S', '-c', child], input=data, capture_output=True)
        checks[who] += 1
        if out.stdout.decode().strip() != digest(bytearray(data) * 9).hex():
            bad.append(f'child: {out}')


budget = int(sys.argv[1]) * MIB
work = [(buffers, 0, budget // 3), (buffers, 1, budget // 3), (files, 2, budget // 3), (children, 3, 0)]
threads = []


def run(f, *arguments):
    try:
        f(*arguments)
    except BaseException as e:
        bad.append(repr(e))


for f, who, part in work:
    threads.append(threading.Thread(target=run, args=(f, who, part)))
    threads[-1].start()
print('begun', flush=True)
for line in sys.stdin:
    # Memory that lies behind much that is free again.
    ballast = mmap.mmap(-1, 400 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(ballast), 4096):
        ballast[at] = 1
    anew += 1
    while min(made) != anew and not bad:
        time.sleep(0.001)
    ballast.close()
    print('anew', *checks, 'bad', len(bad), *bad[:5], flush=True)
stop.set()
for t in threads:
    t.join()
print('checked', *checks, 'bad', len(bad), *bad[:5], flush=True)
