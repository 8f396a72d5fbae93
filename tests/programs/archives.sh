# tar and the compressors.
# needs: tar gzip xz-utils bzip2 zstd
# timeout: 120
r() { $RUN "$@" 2>&1 || echo "status $?"; }
umask 022
mkdir -p src/d/e; for n in $(seq 100); do seq $n > src/d/f$n; done; seq 200000 > src/large; head -c 300000 /dev/zero > src/zero; truncate -s 5M src/sparse; ln -s d/f1 src/link; ln src/large src/hard; chmod 750 src/d/e; chmod 4711 src/d/f2
printf odd > "$(printf 'src/odd \303\251 \t name')"; mkdir -p "src/$(printf '%0100d' 1)/$(printf '%0100d' 2)"; echo deep > "src/$(printf '%0100d' 1)/$(printf '%0100d' 2)/$(printf '%0150d' 3)"
find src -exec touch -h -d @1234567890 {} +
$RUN tar cf a.tar --sort=name --owner=7 --group=8 src; md5sum < a.tar
$RUN tar cf sparse.tar --sort=name --sparse src; test $(stat -c %s sparse.tar) -lt 5000000 && echo sparse
$RUN tar tf a.tar | md5sum; $RUN tar tvf a.tar --numeric-owner | awk '{ print $1, $2, $3, $4 }' | sort | uniq -c
mkdir out; r tar xf a.tar -C out --numeric-owner -p; diff -r src out/src && echo same
(cd out && find src -printf '%p %y %m %U %G %T@ %l\n' | sort | md5sum); stat -c '%h' out/src/hard
mkdir out2; r tar xf sparse.tar -C out2; cmp src/sparse out2/src/sparse; test $(stat -c %b out2/src/sparse) -lt 100 && echo sparse
r tar xf a.tar -O src/d/f5; r tar xf a.tar -C out --strip-components=2 src/d/f9 && cat out/f9; r tar df a.tar; echo x >> src/d/f3; r tar df a.tar; r tar rf a.tar src/d/f3; r tar uf a.tar src/d/f3; r tar --delete -f a.tar src/zero; $RUN tar tf a.tar | grep -c zero || true; r tar cf b.tar --exclude='f*' --transform 's,^src,renamed,' src; $RUN tar tf b.tar | sort | sed -n 1,3p; $RUN tar c src/d/f1 src/d/f2 | tar x -C out2 && echo piped; tar c src | $RUN tar t | wc -l; r tar xf none.tar; r tar xf src/large; r tar cf c.tar missing; r tar xkf a.tar -C out; r tar cf d.tar -g snapshot src/d; r tar tf d.tar | wc -l; r tar cf /dev/null src; r tar --format=posix -cf px.tar src; r tar tf px.tar | wc -l; head -c 10000 a.tar > cut.tar; $RUN tar xf cut.tar -C out2 2> /dev/null || echo "status $?"
rm -rf out out2 *.tar snapshot
for z in gzip bzip2 xz zstd; do
    case $z in gzip) e=gz; d='gzip -d';; bzip2) e=bz2; d='bzip2 -d';; xz) e=xz; d='xz -d';; zstd) e=zst; d='zstd -q -d';; esac
    q=; test $z = zstd && q=-q
    cp src/large l; touch -d @1111111111 l; chmod 640 l
    r $z $q -k l; test -s l.$e && $z -t $q l.$e && echo "$z whole"; stat -c '%a %Y' l.$e
    r $d -c l.$e | cmp - l && echo same; r $z -t $q l.$e; r $z -l l.$e 2>&1 | wc -l
    rm l; r $d l.$e; md5sum l; stat -c '%a %Y' l; cat l | $RUN $z $q -c | $RUN $d | cmp - src/large && echo through
    r $z $q -9 -f l; head -c 1000 l.$e > cut.$e 2>/dev/null || true; ls l* | tr '\n' ' '; $RUN $d -f -c cut.$e > cut 2> /dev/null || echo "status $?"; rm -f cut; r $d missing.$e; rm -f l l.$e cut.$e
done
r gzip -n -1 -c src/zero | md5sum; r gzip --list src/none; r xz -T 2 -k -c src/large | xz -d | cmp - src/large; r xz -9e -c src/zero | md5sum; r xz --robot -l src/none; r zstd -q -T2 -19 -c src/zero | zstd -q -d | cmp - src/zero; r zstd -q --ultra -22 --long=27 -c src/zero | zstd -dq | cmp - src/zero; r zstd -q --train src/d/f* -o dict --maxdict=1000 2>&1 | wc -l | grep -c .; r bzip2 -1 -c src/large | md5sum; seq 1000 > rsyncable; r gzip --rsyncable -nc rsyncable | md5sum; r xz -lvv none
rm -rf dict
