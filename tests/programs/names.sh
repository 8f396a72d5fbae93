# Names that are looked for and found or not, through links and in long directories, before and after they come and go.
# needs: perl
mkdir -p deep/er/still long
echo bottom > deep/er/still/file
ln -s deep/er through; ln -s through/still again; ln -s ../nowhere deep/dangling; ln -s loop loop
for n in $(seq 300); do echo $n > long/entry$n; done
cat > look.pl <<'S'
sub show { my $f = shift; open my $h, "<", $f or return print "$f: $!\n"; print "$f: ", <$h> }
sub names { my $d = shift; opendir my $h, $d or return print "$d: $!\n"; my @n = sort grep !/^\.\.?$/, readdir $h; scalar(@n) . " $n[0] $n[-1]" }
show($_) for qw(again/file through/still/file deep/er/still/../still/./file);
print "$_ -> ", readlink $_, "\n" for qw(again through deep/dangling);
show($_) for qw(nowhere deep/nowhere deep/er/nowhere/at/all deep/er/still/file/below again/none deep/dangling/x loop/x file/);
print -d "again/" ? "directory\n" : "none\n", -l "again" ? "link\n" : "none\n", -e "deep/dangling" ? "leads\n" : "dangles\n";
print names("long"), "\n";
my $sum = 0; $sum += -s "long/entry$_" for 1 .. 300; print "bytes $sum\n";
print -e "long/entry$_" ? "there\n" : "not there\n" for 300 .. 304;
open my $new, ">", "long/entry301" or die; print $new "new\n"; close $new;
show("long/entry301"); print names("long"), "\n";
rename "long/entry301", "long/moved"; show("long/entry301"); show("long/moved"); print names("long"), "\n";
unlink "long/moved", "long/entry1"; show("long/entry1"); show("long/moved"); print names("long"), "\n";
unlink "again"; symlink "deep", "again"; print names("again"), "\n"; show("again/er/still/file");
rename "deep/er", "deep/renamed"; show("again/renamed/still/file"); show("through/still/file"); show("deep/er/still/file");
rmdir "deep/renamed/still" or print "rmdir: $!\n";
unlink "deep/renamed/still/file"; rmdir "deep/renamed/still" or print "rmdir: $!\n"; show("again/renamed/still/file");
mkdir "deep/er"; mkdir "deep/er/still"; open $new, ">", "deep/er/still/file"; print $new "again\n"; close $new; show("through/still/file");
S
$RUN perl look.pl
ls long | wc -l; ls deep
