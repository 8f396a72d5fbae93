# needs: inotify-tools coreutils
# timeout: 60
# Watching what others do: the host changes what a cell watches, and a cell what another one watches.
mkdir w w/sub
echo a > w/old
echo b > w/file
# In each step so many events come, and the next begins when they are there: else some could be taken together.
step() {
    events=$((events + $1)); shift
    "$@"
    for _ in $(seq 200); do [ "$(wc -l < ../log)" -ge $events ] && return; sleep 0.02; done
    echo "after $*: $(wc -l < ../log) events of $events" >&2
}
put() { printf '%s' "$1" > "$2"; }
add() { printf '%s' "$1" >> "$2"; }
for by in host cell; do
    do=; if [ $by = cell ]; then do=$RUN; fi
    : > ../log; : > ../err; events=0
    $RUN inotifywait -m --format '%e %w %f' -e modify,close_write,move,attrib,create,delete,delete_self,move_self \
        w w/file w/sub > ../log 2> ../err & watcher=$!
    until grep -q established ../err; do sleep 0.02; done
    if [ $by = host ]; then
        step 3 put x w/new
        step 2 add more w/new
        step 4 add z w/file
        step 2 mv w/new w/newer
        step 3 put 1 w/.tmp
        step 2 mv w/.tmp w/old
    fi
    step 1 $do mkdir w/made
    step 1 $do rmdir w/made
    step 1 $do ln -s nowhere w/sym
    step 1 $do rm w/sym
    step 1 $do chmod 600 w/old
    step 1 $do ln w/old w/link
    step 1 $do rm w/link
    step 2 $do mv w/old w/sub/old
    step 1 $do rm w/sub/old
    step 3 $do mv w/file w/file2
    # Of the file its watch hears that it has one name less, and that it is gone.
    step 3 $do rm w/file2
    step 2 $do rmdir w/sub
    kill $watcher
    wait $watcher || true
    cat ../log
    mkdir w/sub
    echo a > w/old
    echo b > w/file
done
# Who reads a file when it hears of a change reads what is there now: renamed into place, and written.
cat > follow.sh <<'P'
inotifywait -q -m --format %f -e close_write,moved_to w 2> /dev/null | while read -r name; do
    case $name in config|state) echo "$name: $(cat "w/$name")" ;; end) exit ;; esac
done
P
$RUN bash follow.sh > ../followed & follower=$!
# It listens when the first one is heard.
until grep -q 'state: 0' ../followed; do echo 0 > w/state; sleep 0.05; done
for n in $(seq 20); do
    echo "version $n" > w/.new
    mv w/.new w/config
    until grep -q "config: version $n$" ../followed; do sleep 0.005; done
    echo "$n" > w/state
    until grep -q "state: $n$" ../followed; do sleep 0.005; done
done
: > w/end
sleep 0.1
: > w/end
wait $follower || true
grep config ../followed
# Who has a file open sees what is added to it, also by a watch on its directory.
cat > rest.py <<'P'
import ctypes, os, sys
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(0)
log = open("w/log", "rb", buffering=0)
libc.inotify_add_watch(fd, os.fsencode(sys.argv[1]), 2)
print("reads", log.read(), flush=True)
got = b""
while b"end" not in got:
    os.read(fd, 4096)
    more = log.read()
    if more:
        got += more
        print("more", len(got), flush=True)
print(got)
P
for at in w w/log; do
    echo first > w/log
    rm -f ../rest
    touch ../rest
    $RUN python3 rest.py $at > ../rest & rest=$!
    until grep -q reads ../rest; do sleep 0.02; done
    for n in 10 20 30; do
        printf '123456789\n' >> w/log
        until grep -q "more $n" ../rest; do sleep 0.01; done
    done
    echo end >> w/log
    wait $rest
    cat ../rest
done
# One that was read just now and is replaced is gone.
echo old > w/one
cat > gone.sh <<'P'
inotifywait -q -m --format '%e' -e delete_self w/one & watcher=$!
sleep 0.3
cat w/one
read -r _
cat w/one > /dev/null
echo replaced
read -r _
kill $watcher
P
mkfifo ../say
$RUN bash gone.sh > ../gone < ../say & gone=$!
exec 9> ../say
until grep -q old ../gone; do sleep 0.02; done
echo new > w/.new
mv w/.new w/one
echo >&9
until grep -q DELETE_SELF ../gone; do sleep 0.02; done
echo >&9
wait $gone || true
sort ../gone
exec 9>&-
