# needs: dash bash coreutils findutils procps
# timeout: 60
# Shells that fork: pipelines, substitutions, subshells, jobs, traps, functions in the background; bash and dash.
cat > script <<'END'
echo one two | tr a-z A-Z
count=$(seq 100 | grep -c 7); echo "count $count"
(cd /; exit 3); echo "subshell $?"
{ echo grouped; false; } | cat; echo "last of a pipeline $?"
f() { read -r line; echo "f got $line"; return 4; }
echo text | f; echo "function $?"
for i in 1 2 3; do (sleep 0.0$i; exit "$i") & pids="$pids $!"; done
for p in $pids; do wait "$p"; echo "child $?"; done
sh -c 'kill -TERM $$'; echo "by a signal $?"
trap 'echo trapped' USR1
sh -c "sleep 0.1; kill -USR1 $$" & wait; wait
trap 'echo at the end' EXIT
x=1; (x=2; echo "inside $x"); echo "outside $x"
seq 20 | xargs -n 3 -P 2 sh -c 'echo $# > /dev/null; exit 0' -; echo "xargs $?"
yes | head -n 3 | sort | uniq -c
find . -name script -exec wc -l {} \; | cut -d' ' -f2
echo `echo \`echo nested\``
cat <<HERE | sed s/a/b/
here a $(echo substituted)
HERE
i=0; while [ $i -lt 40 ]; do i=$(expr $i + 1); done; echo "loop $i"
seq 100000 | (read -r a; read -r b; echo "$a $b")
(umask 077; : > made); ls -l made | cut -c1-10
exec 3>&1; (echo by another descriptor >&3); exec 3>&-
(exec true; echo not reached); echo "exec $?"
# Not before it is sleep: a bash that is killed before it has become another program may run the trap.
sleep 30 & until read -r c < /proc/$!/comm && [ "$c" = sleep ]; do :; done; kill $!; wait $! ; echo "killed $?"
(exit 0) || echo not; ! (exit 1) && echo negated
END
for shell in dash bash; do
	echo "== $shell"
	$RUN $shell script 2> errors || echo "status $?"
	# Whether dash says so of a background process depends on when that ends: the lines that differ are counted.
	sort -u errors | grep -c . || true
done
cat > only_bash <<'END'
diff <(seq 3) <(seq 2 4)
coproc cat; echo through >&"${COPROC[1]}"; read -r y <&"${COPROC[0]}"; echo "$y"; eval "exec ${COPROC[1]}>&-"; wait
set -o pipefail; false | true; echo "pipefail $?"; echo "${PIPESTATUS[*]}"
a=($(printf '%s\n' c b a | sort)); echo "${a[*]}"
bash -c 'wait -n $(sh -c "exit 0" & echo); echo "none $?"'
mapfile -t lines < <(seq 5); echo "${#lines[@]}"
time_it() { local start=$SECONDS; "$@"; (( SECONDS - start < 20 )) && echo quick; }
time_it sh -c 'for i in 1 2 3 4 5 6 7 8; do /bin/true; done'
shopt -s lastpipe; echo last | read -r v; echo "$v"
kill -l 15; disown -a; echo $BASHPID | grep -c .
END
$RUN bash only_bash
rm -f script only_bash errors made
