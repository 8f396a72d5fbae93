# needs: runit dash coreutils
# timeout: 60
# runit: a supervisor of services, which starts them, starts them again when they die, tells them signals and stops them; one has a log.
cat > all <<'EOF'
export SVDIR=$PWD/services
mkdir -p services/a/log services/b environment
echo value > environment/X
cat > services/a/run <<E
#!/bin/sh
exec 2>&1
echo started
exec sleep 1000
E
cat > services/a/finish <<'E'
#!/bin/sh
echo "finished $1 $2"
E
cat > services/a/log/run <<E
#!/bin/sh
mkdir -p $PWD/logged
exec svlogd $PWD/logged
E
cat > services/b/run <<E
#!/bin/sh
exec chpst -l $PWD/lock -e $PWD/environment -n 5 -o 33 chpst -u www-data:www-data sh $PWD/program $PWD
E
cat > program <<'E'
cd "$1"
echo "$X $(nice) $(ulimit -n) $(id -un)" > said
trap 'echo told >> said' USR1
trap 'exit 3' TERM
echo ready > ready
while :; do sleep 0.05; done
E
chmod 755 services/*/run services/a/log/run services/a/finish
touch said ready
chmod 666 said ready
plain() { sed -E 's/\(pid [0-9]+\)/(pid)/g; s/[0-9]+s/N s/g'; }
until_() { for _ in $(seq 400); do "$@" && return; sleep 0.05; done; echo "never: $*"; }
runsvdir -P services 2> errors &
server=$!
is_there() { sv status $1 | grep -q '^\(run\|down\|finish\):'; }
for s in a a/log b; do until_ is_there $s; done
for s in a b; do sv -w 20 start $s | plain; done
until_ grep -q ready ready
started() { [ "$(grep -c started logged/current)" = $1 ]; }
until_ started 1
first=$(cat services/a/supervise/pid)
kill -KILL "$first"
another() { p=$(cat services/a/supervise/pid); [ -n "$p" ] && [ "$p" != "$first" ]; }
until_ another
sv -w 20 start a | plain
sv 1 b
until_ grep -q told said
cat said
sv pause b
paused() { sv status b | grep -q paused; }
until_ paused
sv status b | plain
sv cont b
until_ started 2
for s in a b; do sv -w 20 stop $s | plain; done
logged() { [ "$(grep -c finished logged/current)" = 2 ]; }
until_ logged
cat logged/current
sv status b | plain
kill -HUP "$server"
wait "$server" || echo "ended: $?"
# Each service's runsv ends by itself, and the one of the log with it: until then they have files here.
gone() { for s in a b a/log; do sv status $s 2>&1 | grep -q 'runsv not running' || return 1; done; }
until_ gone
grep -c . errors || true
EOF
$RUN bash all
rm -rf "$DIR"/*
