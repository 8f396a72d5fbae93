# Directories with default ACLs: what is made in them gets what these say, whatever the maker's mask; elsewhere the mask counts.
# needs: acl python3
cat > acls.sh <<'END'
set -e -o pipefail
shows() { for f; do echo "$f: $(stat -c '%A %F' "$f")"; getfacl -cp "$f"; done; }
makes() {
	umask "$1"
	: >"$2/file"
	mkdir "$2/dir"
	mkfifo "$2/fifo"
	mkdir -m 700 "$2/own"
	ln -s file "$2/link"
	mkfifo -m 666 "$2/open"
	/usr/bin/python3 - "$2" <<-'P'
		import os, socket, stat, sys
		top = sys.argv[1]
		s = socket.socket(socket.AF_UNIX)
		s.bind(top + "/socket")
		os.mknod(top + "/node", 0o666 | stat.S_IFREG)
		os.close(os.open(top + "/run", os.O_CREAT | os.O_WRONLY, 0o777))
		os.close(os.open(top + "/lent", os.O_CREAT | os.O_WRONLY, 0o6755))
		os.close(os.open(top + "/secret", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
		fd = os.open(top, os.O_TMPFILE | os.O_RDWR, 0o664)
		print("without a name %o" % os.fstat(fd).st_mode)
		os.link("/proc/self/fd/%d" % fd, top + "/named", src_dir_fd=os.open("/", os.O_RDONLY))
	P
	shows "$2"/{file,dir,fifo,own,open,socket,node,run,lent,secret,named}
}
umask 022
mkdir with without group
setfacl -d -m u::rwx,g::r-x,o::---,u:1234:rwx,g:4321:rw- with
setfacl -d -m u::rwx,g::rwx,o::r-x group
for mask in 022 077 000; do
	for d in with without group; do
		mkdir "$d/$mask"
		echo "== $d $mask"
		makes "$mask" "$d/$mask"
	done
done
echo "== below"
umask 077
mkdir -p with/a/b/c
: >with/a/b/c/file
shows with/a with/a/b/c with/a/b/c/file
echo "== several who make things at once, each with its own mask"
for n in 1 2 3 4 5 6 7 8; do
	(
		umask 0$((n % 8))7
		for k in $(seq 40); do
			: >"without/$n.$k"
			: >"with/$n.$k"
		done
	) &
done
wait
for n in 1 2 3 4 5 6 7 8; do
	stat -c %a without/$n.* with/$n.* | sort | uniq -c
done
echo "== copied and taken along"
umask 022
cp with/022/run without/copied
cp -a with/022/run without/kept
tar -C with --acls -cf - 022/run 2>/dev/null | tar -C without --acls -xf - 2>/dev/null
shows without/copied without/kept without/022/run
rm -f */*/{socket,fifo,open}
END
$RUN bash acls.sh
