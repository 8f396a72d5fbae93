# needs: openssh-server openssh-client coreutils bash
# timeout: 120
# OpenSSH's server, and its clients from outside: commands, files both ways, a connection through it, a terminal, several at once.
# Then its clients, with a server outside: these, connections that share one, ports that are passed on, keys and an agent.
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
# The other way round.
/usr/sbin/sshd -D -e -f "$DIR/config" 2> log &
server=$!
for _ in $(seq 200); do $s true 2> first && break; sleep 0.05; done
inside="$RUN $s"
{ $inside 'echo error >&2; exit 3' || echo "status $?"; } 2>&1
$inside 'kill -TERM $$' || echo "status $?"
seq 100000 | $inside md5sum
$inside 'seq 200000' | md5sum
{ $RUN ssh $options -i "$DIR/other" -p "$PORT" 127.0.0.1 true || echo "status $?"; } 2>&1 | sed 's/^[^:]*: //'
$RUN scp -q $options -i "$DIR/key" -P "$PORT" -p -r up 127.0.0.1:"$DIR/again" && (cd again && md5sum *)
$RUN scp -q -O $options -i "$DIR/key" -P "$PORT" 127.0.0.1:"$DIR/again/large" down/again && cmp up/large down/again && echo same
printf '%s\n' "cd $DIR/again" 'ls -l' 'rename small little' "get -p little $DIR/down/little" "put -R $DIR/up" 'chmod 600 little' |
    $RUN sftp -q $options -i "$DIR/key" -P "$PORT" -b - 127.0.0.1 | grep -c 'large$'
ls -R again; stat -c %a again/little
$RUN ssh $options -i "$DIR/key" -o ProxyCommand="$s -W 127.0.0.1:$PORT" -p "$PORT" localhost 'echo through'
# In one cell: a master in the background that is found by its socket, ports and a terminal through it, an agent.
cat > drive <<E
export HOME=$DIR
s="$s -o ControlPath=$DIR/control"
\$s -M -N -f -L $((PORT + 1)):127.0.0.1:$PORT
\$s -O check 2>&1 | tr -d 0-9
all=
for i in 1 2 3 4; do \$s "seq \$i 30000 | md5sum" > shared.\$i & all="\$all \$!"; done
wait \$all
cat shared.*
ssh $options -i $DIR/key -p $((PORT + 1)) localhost echo forwarded
mkfifo silent
script -qec "\$s -tt 'stty size; tty | tr -d 0-9'" /dev/null <> silent | tr -d '\r'
\$s -O exit 2>&1
ssh-keygen -q -t ecdsa -N 'a secret' -f new
ssh-keygen -q -p -P 'a secret' -N '' -f new && ssh-keygen -y -f new | cut -d ' ' -f 1
cat new.pub >> authorized
eval "\$(ssh-agent -s)" > agent
ssh-add -q new && ssh-add -l | cut -d ' ' -f 1,4
ssh ${options/-o IdentitiesOnly=yes/} -A -p $PORT 127.0.0.1 'ssh-add -l | wc -l'
ssh-agent -k | tr -d 0-9
E
$RUN /bin/bash drive
kill -TERM "$server"
wait "$server" || echo "ended: $?"
grep -c 'Accepted publickey' log
rm -rf "${DIR:?}"/*
