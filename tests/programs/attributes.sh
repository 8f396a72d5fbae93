# Extended attributes of files that a directory's listing has told of: none, some, set by this program and by others meanwhile.
# needs: python3
mkdir -p many/sub; for n in $(seq 40); do echo $n > many/f$n; done; ln -s f1 many/link; mkfifo many/pipe; ln many/f20 many/hard
python3 -c 'import os; os.setxattr("many/f7", "user.a", b"seven"); os.setxattr("many/sub", "user.d", b"sub")'
cat > look.py <<'P'
import errno, os, time
def one(path, name):
    try:
        return os.getxattr(path, name, follow_symlinks=False).decode()
    except OSError as e:
        return errno.errorcode[e.errno]
names = ["user.a", "user.d", "user.none", "system.posix_acl_access", "system.posix_acl_default", "trusted.a", "nothing"]
def look(what):
    print(what)
    for f in sorted(os.listdir("many")):
        os.lstat("many/" + f)
    for f in sorted(os.listdir("many")):
        path = "many/" + f
        print(f, *(one(path, n) for n in names), os.listxattr(path, follow_symlinks=False))
look("at first")
look("once more")
os.setxattr("many/f3", "user.none", b"now")
os.removexattr("many/f7", "user.a")
os.rename("many/f7", "many/g7")
os.chmod("many/f4", 0o600)
# By its other name.
os.setxattr("many/hard", "user.a", b"hard")
look("changed here")
open("changed", "w").close()
while not os.path.exists("go"):
    time.sleep(0.05)
# What others set is seen as soon as what they do to a file's times.
for _ in range(200):
    if one("many/f9", "user.a") == "nine":
        break
    time.sleep(0.05)
print(one("many/f9", "user.a"), one("many/f10", "user.a"))
P
$RUN python3 look.py > seen & pid=$!
until [ -e changed ]; do sleep 0.05; done
python3 -c 'import os; os.setxattr("many/f9", "user.a", b"nine")'
touch go; wait $pid; echo $?
cat seen
$RUN ls -l --time-style=+ many | sed 's/root root//; s/total [0-9]*/total/'
