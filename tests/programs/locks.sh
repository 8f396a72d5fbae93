# Locks between programs: two in cells, and one in a cell against one on the host.
# needs: sqlite3 perl util-linux
# timeout: 90
# One holds a lock until it is told to let go; the other looks, then waits for it.
hold='use Fcntl ":flock"; $| = 1; my ($kind, $how) = @ARGV; open my $f, "+<", "file" or die $!; if ($kind eq "flock") { flock($f, $how eq "w" ? LOCK_EX : LOCK_SH) or die $! } else { my $l = pack "s s l! l! i", $how eq "w" ? 1 : 0, 0, 10, 20, 0; fcntl($f, 6, $l) or die $! } print "held\n"; until (-e "go") { select undef, undef, undef, 0.02 } seek $f, 0, 0; syswrite $f, "changed under the lock" if $how eq "w"; exit 0'
look='use Fcntl ":flock"; my ($kind) = @ARGV; open my $f, "+<", "file" or die $!; read $f, my $old, 5; for my $how ("r", "w") { if ($kind eq "flock") { print flock($f, ($how eq "w" ? LOCK_EX : LOCK_SH) | LOCK_NB) ? "$how yes\n" : "$how $!\n"; flock $f, LOCK_UN } else { for my $at (0, 15, 25, 30) { my $l = pack "s s l! l! i", $how eq "w" ? 1 : 0, 0, $at, 2, 0; print fcntl($f, 6, $l) ? "$how $at yes\n" : "$how $at no\n"; $l = pack "s s l! l! i", 2, 0, $at, 2, 0; fcntl $f, 6, $l } } } open my $go, ">", "go"; close $go; if ($kind eq "flock") { flock $f, LOCK_EX or die $! } else { my $l = pack "s s l! l! i", 1, 0, 0, 0, 0; fcntl($f, 7, $l) or die $! } seek $f, 0, 0; read $f, my $new, 30; print "then: $new\n"'
for who in cell-cell cell-host host-cell; do
    for kind in flock fcntl; do
        for how in r w; do
            echo "$who $kind $how"; printf 'as it was' > file; rm -f go held
            one=$RUN; two=$RUN; case $who in host-*) one=;; *-host) two=;; esac
            $one perl -e "$hold" $kind $how > held & pid=$!
            until grep -q held held; do sleep 0.02; done
            $two perl -e "$look" $kind
            wait $pid
        done
    done
done
rm -f go held
# Databases that several write at the same time stay whole and lose nothing.
for mode in delete wal; do
    sqlite3 db-$mode "pragma journal_mode = $mode; create table t(who, n)"
    insert() { for n in $(seq 60); do echo ".timeout 20000"; echo "insert into t values('$1', $n);"; done; }
    # A write-ahead log's index is shared memory, which only processes of one host can have; so cells take turns there.
    insert a > a.sql; insert b > b.sql; insert c > c.sql
    if [ $mode = delete ]; then
        $RUN sqlite3 db-$mode < a.sql & one=$!
        $RUN sqlite3 db-$mode < b.sql & two=$!
        sqlite3 db-$mode < c.sql
        wait $one; wait $two
    else
        $RUN sqlite3 db-$mode < a.sql; $RUN sqlite3 db-$mode < b.sql; sqlite3 db-$mode < c.sql
    fi
    sqlite3 db-$mode 'select who, count(*), sum(n) from t group by who; pragma integrity_check'
    $RUN sqlite3 db-$mode 'select who, count(*), sum(n) from t group by who; pragma integrity_check'
done
rm -f db-* *.sql
# Under a lock one sees names as others left them under theirs.
touch other; : > seen
{ until grep -q there seen; do sleep 0.02; done; rm other; echo go; } | $RUN perl -e 'use Fcntl ":flock"; $| = 1; open my $f, "+<", "file" or die $!; print -e "other" ? "there\n" : "gone\n"; <STDIN>; flock $f, LOCK_EX or die $!; print -e "other" ? "there\n" : "gone\n"' > seen
cat seen
rm -f seen
# Who waits for a lock waits for that file, even if its holder removes it meanwhile, or puts another one in its place.
for how in unlink rename; do
    touch one.lock; : > held; rm -f released
    perl -e 'use Fcntl ":flock"; $| = 1; open my $f, "+<", "one.lock" or die $!; flock $f, LOCK_EX or die $!; print "held\n"; until (-e "waits") { select undef, undef, undef, 0.02 } select undef, undef, undef, 0.2; if ($ARGV[0] eq "unlink") { unlink "one.lock" or die $! } else { open my $n, ">", "new.lock" or die $!; rename "new.lock", "one.lock" or die $! } select undef, undef, undef, 0.4; open my $r, ">", "released" or die $!; close $r; exit 0' $how > held & pid=$!
    until grep -q held held; do sleep 0.02; done
    $RUN perl -e 'use Fcntl ":flock"; open my $f, "+<", "one.lock" or die $!; open my $w, ">", "waits" or die $!; close $w; flock $f, LOCK_EX or die $!; print -e "released" ? "waited\n" : "let in\n"'
    wait $pid
    rm -f one.lock held released waits
done
