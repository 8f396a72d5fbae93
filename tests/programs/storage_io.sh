# What a program changes of files that are stored counts for it by whole pages (proc_pid_io(5)), and for its parent once that has waited;
# file systems add some of their own. A tmpfs stores nothing.
[ "$(stat -f -c %T .)" != tmpfs ] || exit 0
$RUN sh -c 'head -c 1000000 /dev/zero > f; awk "/^write/ { print (\$2 >= 1000000 && \$2 < 1100000) }" /proc/$$/io'
# What lies in one page is one page.
$RUN bash -c 'exec 3> g; for n in {1..100}; do echo $n >&3; done; awk "/^write/ { print (\$2 >= 4096 && \$2 <= 32768) }" /proc/$$/io'
