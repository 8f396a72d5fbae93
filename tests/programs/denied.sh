# What must fail, and how: as another user, on a read-only root, on a full disk.
# needs: coreutils perl busybox-static
# timeout: 90
# options are given here, because they differ from command to command.
if [ $SIDE = linux ]; then
    as() { setpriv --reuid 1234 --regid 1234 --clear-groups "$@" 2>&1 || echo "status $?"; }
else
    as() { ${RUN% --} --user 1234:1234 -- "$@" 2>&1 || echo "status $?"; }
fi
chmod 711 .. .
umask 022
echo secret > private; chmod 600 private; echo shared > public; chmod 644 public; echo theirs > owned; chown 1234:1234 owned; chmod 640 owned; mkdir closed open sticky; chmod 700 closed; chmod 777 open; chmod 1777 sticky; echo mine > sticky/mine; echo x > open/removable; ln -s private link; echo group > group; chown 0:1234 group; chmod 060 group; mkdir noexec; echo in > noexec/in; chmod 744 noexec; cp /bin/true prog; chmod 700 prog; printf '#!/bin/sh\necho ran\n' > script; chmod 644 script
as id; as cat private; as cat public; as cat link; as cat owned; as cat group; as ls closed; as cat noexec/in; as ls noexec; as touch new; as touch open/new; stat -c '%u:%g %a' open/new; as sh -c 'echo x >> public'; as sh -c 'echo y >> owned'; cat owned; as rm -f public; as rm -f open/removable; as rm -f sticky/mine; as mv sticky/mine sticky/taken; as mkdir closed/in; as mkdir open/dir; as chmod 644 private; as chmod 600 owned; as chown 0 owned; as chown 1234:1234 owned; as chgrp 0 owned; as ln private open/hard; as ln -s x open/soft; as truncate -s 0 private; as touch -d @0 public; as touch -d @0 owned; stat -c %Y owned; as readlink link; as stat -c %s private; as env ./prog; as env ./script; as test -r private; as test -w public; as test -x prog; as test -w owned; as mkfifo open/pipe; as mknod open/node c 1 3; as chroot /; as dd if=/dev/zero of=private count=1 status=none; as cp private open/copy; as mv public open/; as head -c 4 /etc/shadow; as ls /root; as nice -n -5 true; as sh -c 'ulimit -n 10; ulimit -n 20; ulimit -H -n 5; ulimit -n 8'
as perl -e 'print "$> $) ", $< == $>, "\n"; $> = 0; print "$>\n"; print chmod(0, "public"), " $!\n"; print rename("public", "open/public") ? "yes" : "no: $!", "\n"; open F, "+<", "public" or print "$!\n"; open F, ">", "sticky/new"; print -s F, "\n"; unlink "sticky/new"; print chdir("closed") ? "yes" : "no: $!", "\n"; print utime(1, 1, "public"), " $!\n"; require POSIX; print POSIX::setuid(0) // "no: $!", "\n"; print POSIX::access("private", POSIX::R_OK()) ? "yes" : "no: $!", "\n"'
rm -rf open/pipe

# A full disk: a small tmpfs on the host.
mkdir small; mount -t tmpfs -o size=1m,nr_inodes=60,mode=755 tmpfs small
trap 'umount "$DIR/small"' EXIT
v() { if [ $SIDE = linux ]; then "$@" 2>&1 || echo "status $?"; else ${RUN% --} --volume $DIR/small:$DIR/small -- "$@" 2>&1 || echo "status $?"; fi; }
v dd if=/dev/zero of=small/full bs=64k status=none; stat -c %s small/full; v sh -c 'echo more >> small/full'; v cp small/full small/second; rm -f small/*
v perl -e 'open my $f, ">", "small/f" or die $!; my $n = 0; while (defined(my $k = syswrite $f, "x" x 10000)) { $n += $k; last if $n > 3e6 } print $n > 2e6 ? "too much\n" : "$!\n"; print close($f) ? "closed\n" : "$!\n"'; rm -f small/*
v fallocate -l 2M small/big; rm -f small/*; v truncate -s 5M small/sparse; v dd if=/dev/zero of=small/sparse bs=1M count=2 conv=notrunc status=none; rm -f small/*
v sh -c 'n=0; while [ $n -lt 100 ]; do : > small/i$n || exit 1; n=$((n + 1)); done'; ls small | wc -l; rm -f small/*; v sort -T small -S 200k --parallel=1 -o small/out /usr/share/dict/none; seq 300000 > numbers; v sort -T small -S 300k -r -o small/out numbers | sed 's/small.sort....../small\/sortX/'; rm -f small/* numbers
v df --output=size,target small; v mkdir small/d; v mv small/d d2; v ln public small/hard; v mv public small/public; cat small/public; v cp -a small/public public; v stat -f -c '%T %S' small
# A tree that is read-only for the cell, and on Linux a read-only mount.
mkdir fixed; echo kept > fixed/file; mkdir fixed/dir; ln -s file fixed/link
if [ $SIDE = linux ]; then mount --bind fixed fixed; mount -o remount,ro,bind fixed; trap 'umount "$DIR/small" "$DIR/fixed"' EXIT; fi
ro() { if [ $SIDE = linux ]; then "$@" 2>&1 || echo "status $?"; else ${RUN% --} --volume $DIR/fixed:$DIR/fixed:ro -- "$@" 2>&1 || echo "status $?"; fi; }
ro cat fixed/link; ro touch fixed/new; ro touch fixed/file; ro sh -c 'echo x >> fixed/file'; ro rm -f fixed/file; ro mkdir fixed/new; ro mkdir fixed/dir; ro rmdir fixed/dir; ro mv fixed/file fixed/other; ro mv public fixed/; ro mv fixed/file .; ro cp public fixed/; ro chmod 600 fixed/file; ro chown 1 fixed/file; ro ln fixed/file fixed/hard; ro ln -s x fixed/soft; ro ln public fixed/hard; ro truncate -s 1 fixed/file; ro test -w fixed/file; ro test -r fixed/file; ro mkfifo fixed/pipe; ro touch -d @0 fixed/file; ro sed -i s/k/x/ fixed/file | sed 's/fixed.sed....../sedX/'; ro rm -rf fixed/none; ro dd if=/dev/null of=fixed/file status=none; ro perl -e 'open my $f, "+<", "fixed/file" or print "$!\n"; open $f, ">", "fixed/none" or print "$!\n"; open $f, ">>", "fixed/file" or print "$!\n"; print -w "fixed/file" ? "writable\n" : "not\n"; print rename("fixed/none", "fixed/x") ? 1 : "$!\n"; print unlink("fixed/none") ? 1 : "$!\n"; print mkdir("fixed/dir") ? 1 : "$!\n"; print mkdir("fixed/none/x") ? 1 : "$!\n"; print link("fixed/none", "fixed/y") ? 1 : "$!\n"; print symlink("a", "fixed/file") ? 1 : "$!\n"; print rmdir("fixed/file") ? 1 : "$!\n"'
ls fixed; ls
# Moving between file systems, and the kinds of files that can't be opened.
v dd if=/dev/full of=/dev/null count=1 status=none; v dd if=/dev/zero of=/dev/full count=1 status=none; v cat small; v cat nothing/x public/x; v sh -c ': > small'; v rm small; v rmdir small; v mkdir public; v ln -s public public; v cp public public; v mv public nothing/here; v rm -d .; v touch ''; v mkdir -p public/x
