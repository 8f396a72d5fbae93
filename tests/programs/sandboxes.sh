# needs: chrony tor man-db coreutils bash
# timeout: 60
# Programs that filter their own system calls: a time server, an anonymizer, a reader of manuals and what it starts.
cd "$DIR"
mkdir -m 700 data
cat > torrc <<E
Sandbox 1
DataDirectory $DIR/data
SocksPort 0
DisableNetwork 1
Log notice stdout
E
cat > all.sh <<'E'
for level in 1 2; do
    /usr/sbin/chronyd -Q -F $level -x -t 1 'server 127.0.0.1 iburst' 2>&1 | cut -d' ' -f2-
done
tor -f torrc > log 2>&1 &
for _ in $(seq 200); do grep -q Bootstrapped log && break; sleep 0.05; done
grep -E '^(Seccomp|Seccomp_filters|NoNewPrivs):' /proc/$!/status
kill -INT $!; wait $!; echo "status $?"
cut -d']' -f2 log | grep -E 'Bootstrapped|Interrupt'
printf '.TH example 1\n.SH NAME\nexample \\- a page\n.SH DESCRIPTION\n.B bold\nand plain\n' > example.1
man -P cat ./example.1 2>&1
E
$RUN bash all.sh
rm -r data log
