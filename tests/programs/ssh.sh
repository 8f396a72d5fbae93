# needs: openssh-server openssh-client coreutils bash
# timeout: 120
# OpenSSH's server, and its clients from outside: commands, files both ways, a connection through it, a terminal, several at once.
cd "$DIR"
for k in host key other; do ssh-keygen -q -t ed25519 -N '' -f "$DIR/$k"; done
cp key.pub authorized
cat > config <<E
Port $PORT
ListenAddress 127.0.0.1
HostKey $DIR/host
PidFile none
AuthorizedKeysFile $DIR/authorized
StrictModes no
UsePAM no
PasswordAuthentication no
Subsystem sftp internal-sftp
PrintMotd no
PrintLastLog no
AcceptEnv GIVEN
SetEnv HOME=$DIR
E
# In the home of a user a shell may find anything: it is another one. And what the service of Debian makes before it starts the server.
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
$RUN /usr/sbin/sshd -D -e -f "$DIR/config" 2> log &
server=$!
options="-F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=$DIR/known -o LogLevel=ERROR -o IdentitiesOnly=yes -o BatchMode=yes"
s="ssh $options -i $DIR/key -p $PORT 127.0.0.1"
for _ in $(seq 200); do $s true 2> first && break; sleep 0.05; done
{ $s 'echo "$0"; id -un; echo error >&2; exit 3' || echo "status $?"; } 2>&1 | sort
$s 'kill -TERM $$' || echo "status $?"
seq 100000 | $s md5sum
$s 'seq 200000' | md5sum
GIVEN=value $s -o SendEnv=GIVEN 'echo "$GIVEN, ${SSH_CONNECTION%% *}"'
{ ssh $options -i "$DIR/other" -p "$PORT" 127.0.0.1 true || echo "status $?"; } 2>&1 | sed 's/^[^:]*: //'
mkdir up down
seq 50000 > up/large; echo small > up/small; chmod 640 up/small
scp -q $options -i "$DIR/key" -P "$PORT" -p -r up 127.0.0.1:"$DIR/there" && (cd there && md5sum * && stat -c '%a' small)
scp -q -O $options -i "$DIR/key" -P "$PORT" 127.0.0.1:"$DIR/there/large" down/ && cmp up/large down/large && echo same
sftp -q $options -i "$DIR/key" -P "$PORT" -b - 127.0.0.1 <<E | grep -v '^sftp>' | sed 's/  *$//'
cd $DIR/there
ls -1
rename small little
mkdir sub
symlink little sub/link
get little $DIR/down/little
put $DIR/up/large sub/large
ls -1 sub
rm sub/large
chmod 600 little
E
ls there there/sub; cat down/little; stat -c %a there/little
# Through it to itself.
ssh $options -i "$DIR/key" -o ProxyCommand="$s -W 127.0.0.1:$PORT" -p "$PORT" localhost 'echo through'
# A terminal. What is typed comes when the program has said that it waits for it, and the end when that has shown.
shown() { for _ in $(seq 400); do grep -qs "$2" "$1" && return; sleep 0.05; done; }
touch one two
(shown one ready; echo word; shown one pts) |
    $s -tt 'stty -echo; echo ready; read x; echo "got $x"; stty size; tty | tr -d 0-9' | tee one | tr -d '\r'
(shown two waits; printf '\003'; shown two interrupted) |
    { $s -tt 'trap "echo interrupted; exit 5" INT; echo waits; sleep 100 & wait' || echo "status $?"; } | tee two | tr -d '\r'
all=
for i in 1 2 3 4 5 6 7 8; do $s "seq $i 50000 | md5sum" > many.$i & all="$all $!"; done
wait $all
cat many.*
kill -TERM "$server"
wait "$server" || echo "ended: $?"
grep -c 'Accepted publickey' log
rm -rf "${DIR:?}"/*
