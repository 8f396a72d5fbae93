# needs: gcc libc6-dev
# timeout: 60
# A program whose file is written anew, in place, runs as it is then, however often it ran before.
cd "$DIR"
for n in 1 2; do
    echo "#include <unistd.h>
int main(void) { write(1, \"program $n\\n\", 10); return getppid() < 0; }" > p$n.c
    gcc -O2 -static -o p$n p$n.c
done
cat > twice.sh <<'EOF'
cp p1 p
for n in 1 2 3; do
    cat p1 > p; ./p; ./p
    cat p2 > p; ./p; ./p
done
cp p1 new; mv new p; ./p
EOF
$RUN sh twice.sh
for n in 1 2; do
    cp p$n q
    $RUN ./q
done
# Changed from outside, while the cell is there.
echo 'for n in 1 2 3; do while [ ! -e go$n ]; do sleep 0.05; done; ./p; ./p; echo > gone$n; done' > waits.sh
$RUN sh waits.sh > out &
i=0
for n in 2 1 2; do
    i=$((i + 1))
    sleep 1.2
    cat p$n > p
    echo > go$i
    while [ ! -e gone$i ]; do sleep 0.05; done
done
wait $!
cat out
rm p p1 p2 q go*
