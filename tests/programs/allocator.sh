# needs: python3 gcc libc6-dev git coreutils redis-server redis-tools
# options: --memory 1G
# timeout: 150
# Unmodified programs with an allocator of their own for what is large (XOS-08): in the cell they have it, on Linux they don't.
gcc -O2 -shared -fPIC -o "$DIR/alloc.so" "$TESTS/../../libatoll/alloc.c"
with="env ${RUN:+LD_PRELOAD=$DIR/alloc.so}"
cat > large.py <<'END'
import array, ctypes, hashlib, json, os, random, subprocess, sys, threading, zlib
from concurrent.futures import ProcessPoolExecutor
def sum_of(data):
    return hashlib.md5(data).hexdigest()[:12]
def work(seed, times=12):
    r, said = random.Random(seed), []
    data = bytearray(r.randbytes(300_000))
    for n in range(times):
        what = r.randrange(7)
        if what == 0 and len(data) < 20 << 20: data = data + data
        elif what == 1: data = bytearray(reversed(data[len(data) // 3:]))
        elif what == 2: data.extend(bytes(r.randrange(1 << 20)))
        elif what == 3: data = bytearray(b"".join([data[at:at + 70_000] for at in range(0, len(data), 70_000)]))
        elif what == 4: data = bytearray(zlib.decompress(zlib.compress(bytes(data), 1)))
        elif what == 5: data = bytearray(array.array("I", bytes(data[:len(data) // 4 * 4])).tobytes()).replace(b"a", b"bc")
        else: data[1000:90_000] = b""
        said.append(f"{len(data)} {sum_of(data)}")
    return said
if __name__ == "__main__":
    for line in work(1, 40): print(line)
    numbers = list(range(3_000_000, 0, -1))
    numbers.sort()
    text = json.dumps(numbers[:400_000])
    print(sum(numbers), len(text), json.loads(text) == numbers[:400_000], (3 ** 900_000).bit_length())
    results = [None] * 6
    def one(n): results[n] = work(n + 10)
    threads = [threading.Thread(target=one, args=(n,)) for n in range(6)]
    for t in threads: t.start()
    # Children of a process with threads in the middle of it.
    children = []
    for n in range(8):
        child = os.fork()
        if child == 0: os._exit(work(99)[-1] != work(99)[-1])
        children.append(child)
    print([os.waitpid(child, 0)[1] for child in children])
    for t in threads: t.join()
    for r in results: print(r[-1])
    with ProcessPoolExecutor(2) as pool:
        for r in pool.map(work, range(20, 26)): print(r[-1])
    print(subprocess.run([sys.executable, "-c", "print(len(bytes(5 << 20) * 7))"], capture_output=True, text=True).stdout)
    try: bytearray(1 << 62)
    except MemoryError: print("no memory for that")
END
$RUN $with python3 large.py > large.txt
cat large.txt
# Nor does it matter on Linux.
LD_PRELOAD=$DIR/alloc.so python3 large.py | cmp - large.txt && echo same
# A program that has an allocator of its own already, which is the C library's then for what is small.
$RUN $with bash -c 'redis-server --port $0 --bind 127.0.0.1 --save "" > /dev/null &
	for n in $(seq 100); do redis-cli -p $0 ping > /dev/null 2>&1 && break; sleep 0.1; done
	head -c 3000000 /dev/zero | tr "\\0" b | redis-cli -p $0 -x set long
	for n in 1 2 3; do redis-cli -p $0 append long 123456; done
	redis-cli -p $0 eval "local s = redis.call([[get]], [[long]]); return #(s .. s .. s)" 0
	redis-cli -p $0 shutdown nosave
	wait' $PORT
awk 'BEGIN { srand(3); for (i = 0; i < 400000; i++) printf "%d %d line\n", rand() * 1e9, i }' > big
$RUN $with sort --parallel=4 -n big | md5sum
$RUN $with sort -S 3M --parallel=2 -T "$DIR" -k 2 big | md5sum
$RUN $with tac big | md5sum
{
	echo '#include <stdio.h>'
	for n in $(seq 1500); do
		echo "static int f$n(int a, int b) { int s = 0; for (int i = a; i < b; i++) s += i * $n ^ (s << 3); return s + a / (b | 1); }"
	done
	echo 'int main(void) { unsigned s = 0;'
	for n in $(seq 1500); do echo "s += f$n(s & 15, $n);"; done
	echo 'printf("%u\n", s); return 0; }'
} > long.c
$RUN $with gcc -O1 -S -o long.s long.c
md5sum < long.s
$RUN $with gcc -o long long.s
./long
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null HOME=$DIR
export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b
g() { $RUN $with git --no-pager -c gc.auto=0 -c maintenance.auto=false "$@" 2>&1 || echo "status $?"; }
g init -q -b main .
g add big long.c
g commit -q -m one
sed 's/7/8/' big > other; mv other big
g commit -q -a -m two
g rev-parse HEAD
g diff --stat HEAD~1
g repack -q -a -d --threads=2
g cat-file -p HEAD~1:big | md5sum
g fsck --strict && echo whole
rm -rf "$DIR"/* "$DIR"/.git
