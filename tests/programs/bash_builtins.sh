# bash with built-ins only: everything that needs no second process.
# needs: bash
# timeout: 120
cat > script <<'SCRIPT'
set +o history
shopt -s extglob nullglob globstar
echo "bash ${BASH_VERSINFO[0]} $# $1 ${@: -1}"
# Arrays.
a=(one two "three four" [7]=seven)
a+=(eight)
echo "${#a[@]} ${!a[@]} ${a[2]} ${a[-1]}"
printf '<%s>' "${a[@]:1:2}"; echo
unset 'a[1]'; declare -p a
declare -A h=([x]=1 [y z]=2)
h[q]=3
for k in x 'y z' q; do echo "$k=${h[$k]}"; done
echo "${#h[@]}" "${h[nothing]-none}"
mapfile -t lines < input
echo "${#lines[@]} lines, last ${lines[-1]}"
mapfile -t -s 1 -n 2 some < input; declare -p some
readarray -d : -t parts <<< 'a:b:c'; echo "${#parts[@]}"
# printf.
printf '%s %5d|%-6s|%06.2f|%x %#o %e\n' str 42 left 3.14159 255 8 12345.678
printf -v made '%03d-%s' 7 x; echo "$made"
printf '%q %b %c %%\n' "it's a" 'tab\there' xyz
printf '%(%Y-%m-%d %H:%M)T\n' 0
printf '%s,' 1 2 3; echo
# Reading.
while IFS=: read -r name value rest; do echo "[$name] [$value] [$rest]"; done < input
read -r first second <<< 'alpha beta gamma'; echo "$first|$second"
read -r -n 3 three <<< abcdef; echo "$three"
read -r -d ';' part <<< 'x y;z'; echo "$part"
IFS=, read -ra fields <<< 'p,q,r'; echo "${#fields[@]} ${fields[1]}"
read -r -t 5 none < /dev/null; echo "read gave $?"
read -r -N 4 exact < input; echo "$exact"
cat_() { while IFS= read -r l || [[ -n $l ]]; do printf '%s\n' "$l"; done; }
cat_ <<HERE
here $((1 + 1)) ${first^^}
HERE
cat_ <<-'HERE'
	quoted $first
	HERE
# Parameter expansion.
p=/usr/local/lib/libfoo.so.1
echo "${p##*/} ${p%/*} ${p%%.*} ${p#*/} ${p/lib/LIB} ${p//lib/LIB} ${p/#\/usr/X} ${p/%1/2}"
echo "${p:5:5} ${p: -4} ${#p} ${p^} ${p^^[a-f]} ${none:-default} ${none:=set} ${none:+other}"
(( ${#none} == 3 )) && echo three
v=p; echo "${!v}"; echo "${!BASH_VERS*}"
x='a  b'; echo $x "$x" ${x@Q} ${x@U}
echo {1..5} {a..e..2} {01..03} pre{x,y}post
echo ~root
# Arithmetic.
echo $((7 / 2)) $((7 % 3)) $((2 ** 10)) $((0x1f)) $((010)) $((2#1011)) $((5 > 3 ? 1 : 0)) $((~5)) $((1 << 4 | 3))
let 'i = 5, j = i++ + ++i'; echo $i $j
for ((n = 0; n < 3; n++)); do printf '%d ' $n; done; echo
((9223372036854775807 + 1 < 0)) && echo wraps
declare -i num=3+4; echo $num
# Tests.
[[ abc == a* ]] && echo glob
[[ abc =~ ^(a)(b)(.*)$ ]] && echo "${BASH_REMATCH[@]}"
[[ -f input && -r input && -s input && ! -x input && ! -d input ]] && echo file
[ -e nothing ] || echo 'not there'
[ -d dir -a -w dir ] && echo dir
[[ input -nt older ]] && echo newer; [[ older -ot input ]] && echo older
[[ hard -ef input ]] && echo same
[[ -L link && -h link ]] && echo link
[[ -p pipe ]] && echo fifo
[[ -t 0 ]] || echo 'no terminal'
[[ -O input ]] && echo mine
test 3 -gt 2 && test a '<' b && echo compared
[[ -v HOME && -n $HOME && -z $empty ]] && echo set
# Globbing.
cd dir; echo *; echo *.txt; echo [ab]*; echo !(*.txt); echo @(a|b).txt; echo **/*; echo ?.*; echo none*
echo .*; shopt -s dotglob; echo *; cd ..
GLOBIGNORE='dir/a*'; echo dir/*; unset GLOBIGNORE
set -f; echo *; set +f
# Redirections.
echo to file > out; echo more >> out; cat_ < out
exec {fd}< input; read -r -u $fd l; echo "from $((fd >= 10)): $l"; read -r -u $fd l; echo "$l"; exec {fd}<&-
exec 3> three; echo line >&3; echo second >&3; exec 3>&-; cat_ < three
exec 4<> both; echo hello >&4; exec 4>&-; cat_ < both
{ echo out; echo err >&2; } > merged 2>&1; cat_ < merged
{ echo a; echo b; } &> merged2; cat_ < merged2
set -C; echo x > out 2> refused; echo "noclobber $?"; echo y >| out; set +C; cat_ < out
echo none 2> /dev/null < nothing-here; echo "missing $?"
exec 5>&1 6>&5; echo via six >&6; exec 5>&- 6>&-
echo closed 2> /dev/null >&7; echo "closed $?"
# Functions, scope, flow.
f() { local x=inner y; echo "$x $# $FUNCNAME"; return 7; }
x=outer; f 1 2; echo "$? $x"
fact() { if (($1 < 2)); then r=1; else fact $(($1 - 1)); r=$(($1 * r)); fi; }
fact 15; echo $r
case foo.txt in *.c) echo c;; *.txt) echo text;;& foo*) echo foo;; esac
select_() { until ((i-- < 3)); do [[ $i == 5 ]] && continue; printf '%s ' $i; done; echo; }
i=8; select_
while :; do break; done
declare -n ref=x; ref=changed; echo "$x"; unset -n ref
readonly ro=1; { ro=2; } 2> /dev/null || echo "read-only"
eval 'echo evaluated $((6 * 7))'
set -- a b c d; shift 2; echo "$* $#"; set --
getopts_() { while getopts 'ab:' o "$@"; do echo "$o ${OPTARG-}"; done; }
getopts_ -a -b val; OPTIND=1
type -t echo if f nothing
command -v cd; builtin echo built in
hash -r; alias ll='echo aliased'; shopt -s expand_aliases; alias ll; unalias ll
source ./sourced arg; echo "status $? $from_sourced"
# Traps and signals.
trap 'echo got USR1' USR1; kill -USR1 $$; echo after
trap 'echo err $?' ERR; false; trap - ERR
trap 'echo debug' DEBUG; :; trap - DEBUG
trap '' TERM; kill -TERM $$; echo survived; trap - TERM
trap -p USR1
kill -l 15; kill -0 $$ && echo alive
# The process.
umask 027; umask; umask -S; > made-with-umask; umask u=rwx,g=rx,o=; umask 022
ulimit -S -n 64; ulimit -n; ulimit -c 0; ulimit -c; ulimit -H -n > /dev/null; ulimit -s > /dev/null && echo limits
trap '' XFSZ; ulimit -S -f 1; printf '%2000s' x > small; echo "too large $?"; ulimit -S -f unlimited; trap - XFSZ
pushd dir > /dev/null; echo "${PWD##*/} ${OLDPWD##*/}"; popd > /dev/null; dirs > /dev/null
cd -P dir/../dir; cd - > /dev/null
cd nothing-here 2> /dev/null || echo 'no such directory'
times > /dev/null && echo timed
echo $((SECONDS < 30)) $((RANDOM >= 0 && RANDOM < 32768)) $((EPOCHSECONDS > 1600000000)) $((BASHPID == $$)) $((PPID >= 0))
RANDOM=42; r1=$RANDOM; RANDOM=42; [[ $r1 == $RANDOM ]] && echo seeded
echo "$LINENO $BASH_SUBSHELL $SHLVL" > /dev/null
enable -n echo; enable echo; shopt -q extglob && echo extglob
set -u; { echo ${undefined_thing}; } 2> /dev/null || true
SCRIPT
cat > script2 <<'SCRIPT'
trap 'echo leaving $?; echo done > left' EXIT
set -e
exec 2> errors
time_it() { local TIMEFORMAT='%0lR'; time :; }
time_it
wait
jobs
s=
for ((n = 0; n < 20000; n++)); do s+=x; done
echo ${#s}
for ((n = 0; n < 500; n++)); do echo "line $n" >> many; done
n=0; while read -r _ k; do ((n += k)) || :; done < many; echo $n
printf -v big '%*s' 100000 ''; echo "${#big}"; echo "${big// /y}" > large
read -r back < large; echo ${#back}
exit 5
SCRIPT
printf 'a:1:x:y\nb:2\nc\nlast without newline' > input
touch -d 2000-01-01 older
mkdir dir dir/sub; touch dir/a.txt dir/b.txt dir/c.c dir/.hidden dir/sub/deep
ln input hard; ln -s input link; mkfifo pipe
echo 'from_sourced="yes $1"; return 4' > sourced
$RUN bash --norc --noprofile script arg1 'last arg' || echo "status $?"
rm pipe
$RUN bash --posix script2 || echo "status $?"
cat left
$RUN bash -c 'echo $0 $1; exec printf "%s\n" replaced' zero one
$RUN bash -c 'exit 300' || echo "status $?"
$RUN bash -c 'kill -KILL $$' 2> /dev/null || echo "status $?"
$RUN bash -c 'ulimit -f 1; printf "%2000s" x > small2' 2> /dev/null || echo "status $?"
$RUN bash -c 'nosuchcommand' 2> /dev/null || echo "status $?"
$RUN bash -c 'if' 2> /dev/null || echo "status $?"
printf 'echo from stdin\nread x\ndata\necho "[$x]"\n' | $RUN bash
$RUN bash -O extglob -n script && echo parses
