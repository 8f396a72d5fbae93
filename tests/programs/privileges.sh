# needs: util-linux login runit dpkg
# Programs that give up privileges for others: setpriv, runuser, su, chpst, start-stop-daemon.
cat > show <<'EOF'
id
# A host may have given some capabilities up.
grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs)' /proc/self/status | sed -E 's/^(Cap[PEB].*:\s)0*[1-9a-f].*/\1some/'
EOF
cat > all <<'EOF'
try() { echo "== $*"; "$@" 2>&1; echo "status $?"; }
# A file that only some may read.
echo secret > secret
chmod 640 secret
chown root:adm secret
web="--reuid=www-data --regid=www-data"
try sh show
try setpriv $web --clear-groups --inh-caps=-all sh show
try setpriv $web --init-groups sh show
try setpriv $web --groups 5,4 sh show
try setpriv $web --keep-groups cat secret
try setpriv $web --groups adm cat secret
try setpriv $web --clear-groups --inh-caps=+dac_read_search --ambient-caps=+dac_read_search cat secret
try setpriv $web --clear-groups --inh-caps=+net_bind_service --ambient-caps=+net_bind_service sh show
try setpriv $web --clear-groups setpriv --reuid=root true
try setpriv --ruid=www-data --euid=root --rgid=www-data --egid=root --clear-groups sh -c 'cat secret; id'
try setpriv --no-new-privs sh show
try setpriv --inh-caps=+chown,+kill sh show
try setpriv --bounding-set=-all sh show
try setpriv --bounding-set=-chown chown daemon secret
try setpriv --bounding-set=-dac_override,-dac_read_search cat secret
try setpriv --securebits=+noroot,+noroot_locked sh show
try setpriv --securebits=+no_setuid_fixup setpriv $web --clear-groups sh -c 'cat secret'
try setpriv --reset-env --reuid=www-data env
try runuser -u www-data -g mail -G adm -- sh show
try runuser - www-data -s /bin/sh -c 'id; pwd; env | sort'
try su www-data -s /bin/sh -c 'id; cat secret'
try su - nobody -s /bin/sh -c 'id; su root -c true < /dev/null'
try chpst -u www-data:www-data:mail sh show
try chpst -U www-data -n 3 -/ / -P sh -c 'echo $UID $GID; nice; id'
try start-stop-daemon --start --pidfile /nonexistent --chuid www-data:www-data --startas /bin/sh -- -c id
try sg mail -c id
# A set-user-ID program gives its owner's id, unless its caller has given that up.
cp /usr/bin/id owners
chown daemon owners
chmod 4755 owners
try setpriv $web --clear-groups ./owners
try setpriv $web --clear-groups --no-new-privs ./owners
EOF
$RUN bash all
rm secret owners show all
