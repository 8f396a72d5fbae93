# What process 1 hears of orphans: inits and a shell, as containers have them. On Linux it is the first of a namespace.
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
(sh -c 'sleep 0.1; echo "its parent: $(ps -o ppid= -p $$ | tr -d " ")"' & exit 0)
sleep 0.4
exit 7
S
status=0
for init in "tini -s --" "dumb-init --" ""; do
    echo "process 1: ${init:-sh}"
    first $init sh ./orphans || status=$?
    echo "status $status"
done
rm -f orphans
