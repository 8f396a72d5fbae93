# coreutils on names and attributes: making, copying, moving, linking, removing, looking.
# needs: coreutils
# timeout: 120
r() { $RUN "$@" 2>&1 || echo "status $?"; }
umask 022

r mkdir -p tree/a/b/c tree/d
r mkdir -m 750 -v tree/e
r mkdir tree/d
r touch -d '2001-02-03 04:05:06.789' tree/a/one
r touch -d @1000000000 tree/a/two
r touch -r tree/a/one tree/a/b/three
r touch -c tree/missing
r stat -c '%n %s %f %h %u %g %y %x' tree/a/one tree/a/two
r stat -c '%A %a %F %N' tree/a/one tree/a tree/e
r ln -s ../a/one tree/d/link
r ln -sfn b tree/a/short
r ln tree/a/two tree/d/hard
r ln tree/a/two tree/d/hard
r ln -f tree/a/two tree/d/hard
r ln -s nowhere tree/d/broken
r ln -sr tree/a/one tree/d/relative
r stat -c '%h %N' tree/a/two tree/d/hard
r readlink tree/d/link
r readlink -f tree/d/link
r readlink -e tree/d/broken
r readlink -m tree/d/nowhere/at/all
r readlink -n tree/a/short; echo
r realpath tree/d/../d/link
r realpath -s tree/d/link
r realpath --relative-to=tree/a tree/d/hard
r stat -L -c '%n %s %F' tree/d/link tree/d/broken

echo some content > tree/a/one
seq 1 20000 > tree/a/big
r cp tree/a/one tree/copy
r cp -p tree/a/two tree/copy2
r cp -v tree/a/one tree/a/big tree/d
r cp -u tree/a/big tree/d/big
r cp -n tree/a/one tree/d/big
r cp --backup=numbered tree/a/one tree/d/one
r cp -l tree/a/big tree/d/linked
r cp -s "$DIR/tree/a/big" tree/d/pointed
r cp --reflink=auto --sparse=always tree/a/big tree/d/sparse
r cp -P tree/d/link tree/d/link2
r cp tree/a tree/z
r cp -a tree copied
r cp -rL tree/d/link tree/followed
$RUN stat -c '%n %s %a %y' copied/a/one copied/a/b/three copied/d/link | sed 's/ 20[2-9].*/ now/'
r cmp tree/a/big copied/a/big 2>/dev/null || true
r mv tree/copy tree/moved
r mv -v tree/moved tree/e/
r mv -n tree/e/moved tree/copy2
r mv -b tree/e/moved tree/copy2
r mv tree/e tree/f
r mv tree/f tree/f/inside
r mv -T tree/d tree/f
r chmod 4755 tree/copy2
r stat -c %a tree/copy2
r chmod -v u=rw,g=r,o= tree/copy2
r chmod -R g+w,o-rwx copied/a
r chmod +t,g+s copied/a
r chmod --reference=tree/copy2 copied/a/one
r stat -c '%a %n' copied/a copied/a/one copied/a/b copied/a/b/c
r chown 1:2 tree/copy2
r stat -c '%u:%g %a' tree/copy2
r chown -h 3 tree/d/link
r stat -c '%u:%g' tree/d/link tree/a/one
r chown -R daemon:bin copied/d
r stat -c '%U:%G' copied/d copied/d/hard
r chgrp -v 0 copied/d
r chown 0:0 tree/copy2
r install -D -m 640 tree/a/one installed/deep/one
r install -d -m 700 installed/dir
r install -o 1 -g 1 -m 600 tree/a/one installed/owned
r stat -c '%a %u %g %n' installed/deep/one installed/dir installed/owned
r truncate -s 10 tree/short
r truncate -s +5 tree/short
r truncate -s %8 tree/short
r truncate -s '<4' tree/short
r truncate -s 0 -c tree/absent
r stat -c %s tree/short
r rmdir tree/a
r rmdir -p tree/a/b/c
r rmdir --ignore-fail-on-non-empty tree/a
$RUN mktemp -p "$DIR" -u name.XXXXXX | sed 's/......$/random/'
t=$($RUN mktemp -p "$DIR" name.XXXXXX) && stat -c '%a %s' "$t" && rm "$t"
t=$($RUN mktemp -d -p "$DIR") && stat -c '%a %F' "$t" && rmdir "$t"
r rm tree/a
r rm tree/none
r rm -f tree/none
r rm -v tree/short
r rm -rv copied/d
r rm -d tree/a/b
r unlink tree/a/two
r link tree/a/one tree/a/again
r ls -1 tree/a tree/d
r ls -p copied
r touch -d '2020-01-01' tree tree/a tree/d tree/f tree/copy2 tree/a/* 
r touch -h -d '2020-01-01' tree/a/short
r ls -la --time-style=+%s --block-size=1 tree/a | grep -v ' \.\.$' | sed 's/^total.*/total/'
r ls -ln --full-time tree/a/one
r ls -d tree/a tree/nothing
r ls -R installed
r ls -S -1 tree/a
r ls -t -1 tree/a/one tree/a/big
r ls -F --color=always tree
r ls -m tree/a
r ls -x -w 40 tree/a
r ls -i tree/a/one | grep -c one
r dir tree/a
r vdir --time-style=+ tree/a/one
r sync
r sync tree/a/one
r sync -f tree
r pathchk -p tree/a 'odd name' "$(printf '%0300d' 1)"
r pathchk "$(printf '%0300d' 1)"
r mkfifo -m 600 pipe
r stat -c '%F %a' pipe
r rm pipe
r du -a --apparent-size -b tree/a | sort
r du -s tree > /dev/null
$RUN df "$DIR" > df.out && rm df.out && echo df is fine
$RUN df -h --output=target "$DIR" > df.out && rm df.out && echo df is fine
