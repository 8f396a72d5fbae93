# What is left of orphans where process 1 is an init or a shell, as containers have them. On Linux it is the first of a namespace.
# needs: tini dumb-init dash procps util-linux
# timeout: 60
if [ "$SIDE" = cell ]; then first() { $RUN "$@"; }; else first() { unshare --fork --pid --mount-proc "$@"; }; fi

# Orphans that end before and after their parents, then what is left of them.
cat > orphans <<'S'
for n in 1 2 3 4 5 6 7 8 9 10; do
    (sh -c 'exit 3' & sleep 0.01 & exit 0)
    (sleep 0.05 & exit 0)
done
for n in $(seq 400); do
    left=$(ps -e -o stat=,comm= | grep -c -e '^Z' -e sleep)
    [ "$left" = 0 ] && break
    sleep 0.02
done
echo "left: $left"
(sh -c 'sleep 0.5; echo "its parent: $(ps -o ppid= -p $$ | tr -d " ")" > parent; mv parent told' & exit 0)
for n in $(seq 400); do
    [ -e told ] && break
    sleep 0.02
done
cat told
rm told
exit 7
S
for init in "tini -s --" "dumb-init --" ""; do
    echo "process 1: ${init:-sh}"
    status=0
    first $init sh ./orphans || status=$?
    echo "status $status"
done
rm -f orphans
