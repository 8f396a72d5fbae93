# busybox, statically linked: its applets over a small file tree.
# needs: busybox-static
# timeout: 120
b() { $RUN /bin/busybox "$@" 2>&1 || echo "status $?"; }
umask 022
mkdir -p t/sub/deep
seq 1 50 > t/numbers
printf 'one\ntwo three\nfour\tfive\n\nlast' > t/words
printf 'b 2\na 1\nc 3\n' > t/sub/pairs
ln -s ../words t/sub/link
touch -d @1000000000 t/numbers t/words t/sub/pairs

b true; b false
b ls -la t/sub/pairs; b ls -R t; b ls -F t/sub
b cat t/words; echo
b cp -a t copy; b cp t/numbers t/n2
b mv t/n2 t/n3
b ln t/n3 t/n4; b ln -s n3 t/n5
b stat -c '%n %s %h %a' t/numbers t/n3
b rm t/n4; b rm -r copy/sub
b mkdir -p t/x/y; b rmdir t/x/y
b touch t/empty; b touch -d @1500000000 t/empty
b chmod 640 t/empty; b chown 1:1 t/empty; b chgrp 2 t/empty
b stat -c '%a %u %g %Y' t/empty
b head -n 3 t/numbers; b tail -n 2 t/numbers; b tac t/sub/pairs
b wc t/words; b sort t/sub/pairs; b sort -rn t/numbers | sed -n '1,2p'
b uniq -c t/sub/pairs; b cut -d ' ' -f 2 t/sub/pairs
b paste t/sub/pairs t/sub/pairs; b rev t/words; echo
b tr a-z A-Z < t/words; echo
b grep -n t t/words; b grep -rl a t/sub; b egrep -c '^.o' t/words; b fgrep -v two t/words
b sed -e 's/o/0/g' -e 2d t/words; b sed -n '$=' t/numbers; b sed -i s/1/one/ t/n3; b head -1 t/n3
b awk '{ s += $1 } END { print s, NR }' t/numbers
b find t -name '*s' -type f; b find t -newer t/numbers -size -1 -type d
b xargs echo < /dev/null
b od -c t/words; b hexdump -C t/sub/pairs; b xxd t/sub/pairs
b md5sum t/words; b sha1sum t/words; b sha256sum t/words; b sha512sum t/words; b sha3sum t/words; b cksum t/words; b crc32 t/words
b base64 t/words; b uuencode t/words w > t/uu; b uudecode -o - t/uu; echo
b gzip -k t/numbers; b gunzip -c t/numbers.gz | tail -1; b gunzip -t t/numbers.gz 2>&1; rm t/numbers.gz
b bzip2 -k t/numbers; b bzcat < t/numbers.bz2 | tail -1; rm t/numbers.bz2
b xzcat < <(xz -c t/numbers) | tail -1
b tar cf t.tar -C t numbers words sub; b tar tf t.tar; b mkdir out; b tar xf t.tar -C out; b ls out; rm t.tar
find t -name 'n*' | sort | $RUN /bin/busybox cpio -o -H newc 2> /dev/null > t.cpio; $RUN /bin/busybox cpio -t < t.cpio 2> /dev/null; rm t.cpio
b diff t/numbers t/n3; b cmp t/numbers t/n3
b diff -u t/numbers t/n3 | sed 1,2d > d.patch; (echo '--- t/n6'; echo '+++ t/n6'; cat d.patch) > p; cp t/numbers t/n6; b patch -p0 < p; rm d.patch p
b dd if=t/numbers bs=4 skip=2 count=3 2> /dev/null
b split -l 20 t/numbers sp.; b cat sp.ac | wc -l
b expand t/words; echo; b unexpand -a t/numbers | tail -1; b fold -w 3 t/words; echo; b nl t/words
b seq 3; b factor 60; b expr 3 + 4; b dc -e '3 4 * p'; b printf '%05d %s\n' 42 x; b echo -e 'a\tb'
echo '2^10; 7/2' | b bc
b basename t/sub/pairs; b dirname t/sub/pairs; b realpath t/sub/link; b readlink t/sub/link; b readlink -f t/sub/link; b pwd
b date -u -d @0; b date -u -d @86400 +%F; b cal 2 2024
b env -i A=b /bin/busybox env; b printenv TZ; b id; b whoami; b groups; b uname -s; b nproc | grep -c .; b hostname > /dev/null; b tty < /dev/null
b test -d t; b test -f t; b '[' 1 -lt 2 ']'
b truncate -s 7 t/empty; b fallocate -l 100 t/empty; b stat -c %s t/empty; b shred -n 1 t/empty; b unlink t/empty
b mktemp -u -p . | wc -c; b mkfifo t/pipe; b rm t/pipe; b sync; b usleep 1000; b sleep 0
b du -s t > /dev/null; b df . > /dev/null; b free > /dev/null; b uptime > /dev/null; b ps > /dev/null
b tee t/teed < t/sub/pairs; b cat t/teed
b comm t/sub/pairs t/teed 2>&1 | sed -n '1,1p'
b strings t/words; b dos2unix t/words; b unix2dos t/teed; b od -c t/teed | sed -n '1,1p'
b which ls; b ipcalc -n 10.1.2.3/24; b cryptpw -m md5 -S abcdefgh secret 2>&1 | tail -1; b mkpasswd -m sha256 -S saltsalt secret
b ash -c 'x=1; for i in a b c; do x=$((x * 2)); echo $i $x; done; case $x in 8) echo eight;; esac; [ -f t/words ] && read line < t/words && echo "$line"; f() { return 3; }; f || echo $?'
b sh -c 'echo "$@" > t/from-sh; exec cat t/from-sh' sh 1 2
b nosuchapplet
