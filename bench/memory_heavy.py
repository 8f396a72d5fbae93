# Work that is mostly memory: prints what was done and the nanoseconds that it took, a line each.
import time


def timed(name, do):
    begun = time.monotonic_ns()
    do()
    print(name, time.monotonic_ns() - begun, flush=True)


class Node:
    __slots__ = ("left", "right")


def tree(depth):
    node = Node()
    if depth:
        node.left, node.right = tree(depth - 1), tree(depth - 1)
    return node


def buffers():
    kept = []
    for n in range(200):
        kept.append(bytearray(b"x") * ((n % 13 + 1) << 18))
        if len(kept) > 24:
            del kept[::3]


timed("python3: a dictionary of 2,000,000 texts", lambda: {str(n): n for n in range(2_000_000)})
timed("python3: a list of 8,000,000 floats, sorted", lambda: sorted(float(n * 7919 % 8_000_000) for n in range(8_000_000)))
timed("python3: binary trees of a depth of 17, eight one after the other", lambda: [tree(17) and None for _ in range(8)])
timed("python3: buffers of 256 KiB to 3 MiB that come and go", buffers)
