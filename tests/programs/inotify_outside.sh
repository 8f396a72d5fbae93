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
