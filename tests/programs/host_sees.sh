# What the cell writes, the host sees, and the other way around: within the time that is documented.
# needs: coreutils perl
# timeout: 60
# Written behind the program's back, again and again, while the file stays open.
$RUN perl -e '$| = 1; open my $f, ">", "log"; $f->autoflush; for my $n (1 .. 3) { print $f "line $n\n"; select undef, undef, undef, 0.6; print "wrote $n\n"; until (-e "go$n") { select undef, undef, undef, 0.05 } }' > progress &
pid=$!
for n in 1 2 3; do
    until grep -q "wrote $n" progress; do sleep 0.05; done
    cat log; touch go$n
done
wait $pid
# What others change is seen by one who has the file open, opened it before, looks at it, or reads at its end.
echo first > shared
$RUN perl -e '
    $| = 1; open my $f, "<", "shared"; print scalar <$f>; print "ready\n";
    for (1 .. 200) { my $l = <$f>; if (defined $l) { print "then $l"; last } seek $f, 0, 1; select undef, undef, undef, 0.05 }
    for (1 .. 200) { last if -s "made"; select undef, undef, undef, 0.05 } print -s "made", "\n";
    for (1 .. 200) { last if !-e "gone"; select undef, undef, undef, 0.05 } print -e "gone" ? "still\n" : "gone\n";
    for (1 .. 200) { open my $g, "<", "replaced"; my $l = <$g>; if ($l eq "new\n") { print "replaced\n"; last } select undef, undef, undef, 0.05 }
    open my $h, "<", "old"; print scalar <$h>; print join(" ", sort glob "dir/*"), "\n";
' > seen < /dev/null &
pid=$!
until grep -q ready seen 2> /dev/null; do sleep 0.05; done
touch gone; echo old > replaced; mkdir dir
echo second >> shared; sleep 0.5
# What is looked at once, last, is there before what is waited for.
echo contents > made; rm gone; touch dir/a dir/b; echo fresh > old; echo new > r2; mv r2 replaced
wait $pid
cat seen
# Closed means written, synced means written, renamed means written.
$RUN perl -e 'open my $f, ">", "closed"; print $f "x" x 300000; close $f; open my $g, ">", "synced"; print $g "y"; $g->flush; $g->sync; open my $h, ">", "part"; print $h "z" x 9000; $h->flush; rename "part", "whole"; kill KILL => $$' 2> /dev/null || echo "status $?"
wc -c closed synced whole
# Two who append at the same time lose nothing of one another.
append='$| = 1; open my $f, ">>", "both"; $f->autoflush; for my $n (1 .. 1500) { print $f "$ARGV[0] $n ", "x" x ($n % 90), "\n"; select undef, undef, undef, 0.001 if $n % 50 == 0 }'
$RUN perl -e "$append" a & one=$!
$RUN perl -e "$append" b & two=$!
perl -e "$append" c
wait $one $two
wc -l both; for who in a b c; do grep -c "^$who [0-9]* x*$" both; done
sort both > sorted; md5sum < sorted; rm both sorted
# A log that is cut off by others goes on at its start.
$RUN perl -e '$| = 1; open my $f, ">>", "rotated"; $f->autoflush; print $f "before\n"; $f->sync; print "ready\n"; for (1 .. 200) { last if -e "cut"; select undef, undef, undef, 0.05 } print $f "after\n"' > state &
pid=$!
until grep -q ready state; do sleep 0.05; done
truncate -s 0 rotated; touch cut
wait $pid
cat rotated
