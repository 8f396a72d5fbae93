# coreutils that tell about the system, the user, the environment and the time (XOS-13).
# needs: coreutils
# timeout: 120
# The programs, not the built-ins of the same names.
r() { local p; p=$(type -P "$1" || echo "$1"); shift; $RUN "$p" "$@" 2>&1 || echo "status $?"; }
r true; r false
r test -f /etc/passwd; r test -d /etc/passwd; r test -r /etc/passwd -a -s /etc/passwd
r test -x /bin/ls; r test 3 -lt 4; r test abc = abd; r test -L /bin/none; r [ -e / ]
r test /etc/passwd -ef /etc/../etc/passwd
r printf '%s|%5d|%-5s|%05.1f|%x|%o|%c|%b|%q\n' a 7 b 3.14159 255 8 xyz 'a\tb' "it's"
r printf '%d\n' 12abc
r printf '\x41\u00e9\101%%\n'
r echo -e 'a\tb\nc'; r echo -n x; echo
r basename /a/b/c.txt .txt; r basename -a -s .c x/a.c y/b.c; r basename /
r dirname /a/b/c a b/ /
r pwd; r pwd -P
r date -u -d @0; r date -u -d @1700000000.123456789 +%FT%T.%N; r date -d '2024-02-29 +1 year' +%F
r date -u -d 'Mon, 02 Jan 2006 15:04:05 -0700' -R; TZ=America/New_York r date -d @1700000000 +'%c %Z'
r date -u -r /etc/debian_version +%Y | grep -c 20; r date -d nonsense
test $(( $($RUN date +%s) - $(date +%s) )) -le 2 && echo now
r env -i A=1 B=2 env; r env -u HOME -C / pwd; r env X=y printenv X; r printenv NOTSET; r env -i false
r env --split-string='A=1 printenv A'
r env nothing-here; r env /etc/passwd
r id; r id -u; r id -gn; r id root; r id -G nobody; r id nosuchuser; r whoami; r groups; r groups daemon; r logname 2>/dev/null
r uname -s; r uname -m; r uname -o; r uname -r | grep -c '^[0-9]*\.'; r uname -n | grep -c .
r nproc --all | grep -c '^[1-9]'; $RUN nproc | grep -c '^[1-9]'
r hostid | wc -c; r tty < /dev/null; r stty size < /dev/null
r sleep 0.05; r sleep 0.01s 0.02; r sleep x
r users | wc -l; r who /dev/null; r uptime > /dev/null; r pinky -s > /dev/null || true
r nice; r nice -n 5 nice; r nohup echo hello < /dev/null; r chroot / echo in; r chroot /nowhere echo in
r stdbuf -oL echo line
r arch; r hostname > /dev/null
r dircolors -b | cut -c 1-20
r kill -l 9; r kill -l TERM
r /bin/kill -0 99999
r ls --version | sed -n '1,1p'
for no in nosuchprogram /etc /etc/passwd; do $RUN $no 2> /dev/null || echo "status $?"; done
r stat -c '%n %F %t,%T' /dev/null /dev/zero /dev/urandom /dev/full /dev/tty
r stat -f -c '%T' /proc
echo x > /dev/full && echo written
$RUN sh -c 'echo x > /dev/full' 2>&1 || echo "status $?"
$RUN head -c 5 /dev/zero | od -c
r head -c 16 /dev/urandom | wc -c
r readlink /proc/self/exe; r cat /proc/self/comm; r ls /proc/self/fd | grep -c "^[012]$"; r readlink /proc/self/cwd
r cat /proc/self/cmdline | tr '\0' ' '; echo
r wc -l /proc/self/maps | grep -c maps
r ls -d /proc/self/task /sys /dev/fd
