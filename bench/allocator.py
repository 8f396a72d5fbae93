# A program with large temporary objects, as it is: names and nanoseconds, for xtask/src/memory.rs.
import time

MIB = 1 << 20
large, some = bytearray(b"0123456789abcdef" * (3 * MIB)), bytearray(b"0123456789abcdef" * (MIB // 2))
numbers = list(range(4 * MIB))


def row(name, times, f):
    f()
    begun = time.perf_counter()
    for _ in range(times):
        f()
    print(f"{name} {(time.perf_counter() - begun) / times * 1e9:.0f}", flush=True)


def copies():
    return [bytearray(some) for _ in range(6)]


def changes():
    return bytes(large).replace(b"9a", b"a9").translate(bytes(range(256)))[16:]


row("python3: a bytearray of 48 MiB is copied", 20, lambda: bytearray(large))
row("python3: six copies of 8 MiB", 20, copies)
row("python3: 48 MiB, replace, translate, slice", 5, changes)
row("python3: a list of 32 MiB is copied", 20, lambda: numbers[:])
row("python3: a bytearray grows to 32 MiB by 256 KiB", 10, lambda: [grown := bytearray()] and [grown.extend(some[: MIB // 4]) for _ in range(128)])
try:
    import numpy
except ImportError:
    pass
else:
    a, b = numpy.ones(6 * MIB), numpy.ones(6 * MIB)
    row("numpy: a * b + a of 48 MiB", 20, lambda: a * b + a)
