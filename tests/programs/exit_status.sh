# How a program ended, and that it is told what comes from outside: as without a cell.
# needs: python3
status() { "$@" && echo "status 0" || echo "status $?"; }
status $RUN /bin/true
status $RUN sh -c 'exit 255'
status $RUN /nothing/there
status $RUN nothing-of-that-name
status $RUN /etc/passwd
status $RUN /
printf '#!/nothing/there\n' > script
chmod 755 script
status $RUN ./script
for signal in KILL SEGV TERM PIPE; do
    status $RUN sh -c "kill -$signal \$\$"
done
# Ended from outside, and told so.
$RUN sh -c 'echo > begun; exec sleep 30' &
until [ -s begun ]; do sleep 0.05; done
kill -TERM $!
wait $! || echo "status $?"
sleep 5 | $RUN bash -c 'trap "echo told; exit 3" USR1; echo > ready; for i in {1..100}; do read -r -t 0.05 || true; done' &
for _ in {1..100}; do [ -e ready ] && break; sleep 0.05; done
kill -USR1 $!
wait $! || echo "status $?"
# What somebody sends from outside is of no process that there is here, but is no terminal's either: mariadbd reloads on such a SIGHUP only.
$RUN /usr/bin/python3 -c '
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
open("waits", "w").close()
i = signal.sigwaitinfo([signal.SIGHUP])
print(i.si_signo, i.si_code)' &
for _ in {1..200}; do [ -e waits ] && break; sleep 0.05; done
kill -HUP $!
wait $! || echo "status $?"
