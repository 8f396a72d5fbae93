# perl: files, directories, sockets, signals, time, text.
# needs: perl
# timeout: 60
cat > all.pl <<'PERL'
use strict; use warnings;
$| = 1;
use Fcntl qw(:flock :seek :mode); use POSIX (); use Socket; use IO::Socket::INET; use IO::Select; use File::Temp; use File::Find; use File::Copy; use Time::HiRes qw(time sleep alarm); use Cwd; use Data::Dumper; use Errno; use List::Util qw(sum max shuffle reduce); use Digest::MD5 qw(md5_hex); use MIME::Base64; use Storable; use Tie::File; use Encode; use Scalar::Util; use IO::Handle; use Sys::Hostname; use Text::Wrap;
# Text.
my $text = "The quick brown fox jumps over the lazy dog";
my %count; $count{lc $_}++ for $text =~ /\w/g;
print join(',', map { "$_$count{$_}" } sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count), "\n";
(my $swapped = $text) =~ s/(\w+) (\w+)/$2 $1/g; print "$swapped\n";
print "named $+{word} at $-[0]\n" if $text =~ /(?<word>fox|dog)(?= jumps)/;
printf "%05d|%-8s|%8.3f|%x|%o|%e|%s|%vd\n", 42, 'ab', 3.14159, 255, 8, 12345.678, 1e21, '1.22.333';
print join(' ', unpack('N n C a3', pack('N n C a3', 1, 2, 3, 'abc'))), "\n";
print join('|', split /\s*,\s*/, 'a , b,c ,d'), "\n";
my @sorted = sort { $a <=> $b } map { ($_ * 7919) % 1009 } 1 .. 1000; print "$sorted[0] $sorted[499] $sorted[-1]\n";
print reduce { $a * $b } 1 .. 10; print "\n";
print join(',', (local $_ = 'a1b22') =~ tr/0-9//, scalar reverse('abc'), ucfirst lc 'XYZ', sprintf('%b', 10)), "\n";
print md5_hex($text), ' ', encode_base64('data'), length(encode('UTF-8', "\x{263a}")), "\n";
local $Data::Dumper::Sortkeys = 1; local $Data::Dumper::Indent = 1; print Dumper({ a => [1, { b => 2 }], c => \'x' });
# Files.
open my $f, '+>', 'file' or die $!; print $f "line $_\n" for 1 .. 1000; seek $f, 0, SEEK_SET; my @l = <$f>; print scalar(@l), " $l[-1]";
seek $f, -5, SEEK_END; read $f, my $tail, 5; print $tail; print tell($f), ' ', (eof $f ? 'end' : 'more'), "\n"; truncate $f, 20; print -s $f, "\n"; close $f;
open $f, '>>', 'file'; flock $f, LOCK_EX or die; syswrite $f, "appended\n"; print sysseek($f, 0, SEEK_CUR), "\n"; flock $f, LOCK_UN; close $f;
open $f, '<', 'nothing' or print "$!\n"; print $!{ENOENT} ? "ENOENT\n" : "other\n";
{ local @ARGV = ('file'); while (<>) { print "$.: $_" if $. > 2 } }
print join(' ', map { -e $_ ? "$_" : "no $_" } qw(file none)), ' ', (-f 'file' && -r _ && -w _ && !-x _ && !-d _ && !-l 'file' ? 'plain' : 'odd'), "\n";
chmod 0640, 'file'; my @s = stat 'file'; printf "%o %d %d\n", $s[2] & 07777, $s[7], $s[3];
utime 1e9, 1.1e9, 'file'; print join(' ', (stat 'file')[8, 9]), "\n"; link 'file', 'hard'; symlink 'file', 'soft'; print readlink('soft'), ' ', (lstat 'soft')[7], ' ', (stat 'hard')[3], "\n";
rename 'hard', 'harder'; unlink 'harder', 'soft' or die; print -e 'harder' ? 'still' : 'gone', "\n"; copy('file', 'copied'); move('copied', 'moved'); print -s 'moved', "\n";
mkdir 'dir', 0700 or die; mkdir 'dir' or print "$!\n"; rmdir 'nodir' or print "$!\n"; for my $n (1 .. 300) { open my $h, '>', "dir/f$n"; print $h $n; }
opendir my $d, 'dir'; my @names = grep { !/^\./ } readdir $d; print scalar(@names), "\n"; rewinddir $d; print scalar(() = readdir $d), "\n"; closedir $d; my @g = glob 'dir/f1?'; print "@g\n";
my $sum = 0; find(sub { $sum += -s $_ if -f }, 'dir'); print "$sum\n"; unlink glob 'dir/*'; rmdir 'dir' or die $!;
my ($th, $tn) = File::Temp::tempfile(DIR => '.'); print $th 'x' x 100000; close $th; print -s $tn, "\n"; unlink $tn;
tie my @tied, 'Tie::File', 'file' or die; $tied[0] = 'replaced'; push @tied, 'pushed'; untie @tied; store({ a => [1 .. 5] }, 'stored'); print "@{retrieve('stored')->{a}}\n"; unlink 'stored';
{ open my $m, '<', \"in\nmemory\n"; print scalar(() = <$m>), "\n"; local $/ = undef; open my $r, '<:encoding(UTF-8)', 'file'; my $all = <$r>; print length $all, "\n"; }
open my $save, '>&', \*STDOUT; open STDOUT, '>', 'redirected'; print "hidden\n"; close STDOUT; open STDOUT, '>&', $save; print -s 'redirected', "\n";
chdir '/'; print getcwd(), "\n"; chdir $ENV{DIR}; umask 077; open $f, '>', 'private'; printf "%o\n", (stat $f)[2] & 0777;
# Pipes, sockets, select.
pipe my $r, my $w; syswrite $w, 'through'; sysread $r, my $got, 100; print "$got\n"; my $sel = IO::Select->new($r); print scalar($sel->can_read(0.01)), "\n"; syswrite $w, 'x'; print scalar($sel->can_read(1)), "\n"; close $w; sysread $r, $got, 9; print sysread($r, $got, 9), "\n";
socketpair my $a, my $b, AF_UNIX, SOCK_STREAM, PF_UNSPEC; $a->autoflush; print $a "pair\n"; print scalar <$b>; shutdown $a, 1; print defined <$b> ? 'more' : 'end', "\n";
my $server = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1', LocalPort => 0, ReuseAddr => 1) or die $!; my $client = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $server->sockport) or die $!; my $conn = $server->accept; print $client "GET\n"; print scalar <$conn>; print $conn "reply\n"; print scalar <$client>; print $conn->peerhost, ' ', $client->peerport == $server->sockport ? 'port' : 'other', "\n";
$client->blocking(0); print defined(sysread $client, $got, 1) ? 'data' : $!{EAGAIN} ? "again\n" : "$!\n"; close $conn; $sel = IO::Select->new($client); $sel->can_read(1); print sysread($client, $got, 1), "\n"; IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $ENV{PORT}) or print "$!\n";
socket my $u1, PF_INET, SOCK_DGRAM, 0; bind $u1, sockaddr_in(0, INADDR_LOOPBACK); socket my $u2, PF_INET, SOCK_DGRAM, 0; send $u2, 'datagram', 0, getsockname $u1; recv $u1, $got, 100, 0; print "$got\n"; print inet_ntoa(inet_aton 'localhost'), "\n";
# Signals and time.
my @got; local $SIG{USR1} = sub { push @got, $_[0] }; kill USR1 => $$; print "@got\n"; local $SIG{ALRM} = sub { die "alarm\n" }; eval { alarm 0.05; sleep 5; }; print $@; eval { alarm 0.05; select undef, undef, undef, 5 }; print $@;
eval { alarm 0.05; sysread $u1, $got, 1; }; print $@; alarm 0; my $set = POSIX::SigSet->new(POSIX::SIGUSR2()); my $twice = 0; local $SIG{USR2} = sub { $twice++ }; POSIX::sigprocmask(POSIX::SIG_BLOCK(), $set); kill USR2 => $$; print "$twice "; my $pending = POSIX::SigSet->new; POSIX::sigpending($pending); print $pending->ismember(POSIX::SIGUSR2()), ' '; POSIX::sigprocmask(POSIX::SIG_UNBLOCK(), $set); print "$twice\n";
{ local $SIG{PIPE} = sub { print "pipe\n" }; pipe my $x, my $y; close $x; syswrite $y, 'z'; print "$!\n"; } my $t = time; sleep 0.05; my $e = time - $t; print $e >= 0.05 && $e < 2 ? "slept\n" : "slept $e\n"; my @t = times; print $t[0] >= 0 && @t == 4 ? "times\n" : "no\n";
print scalar gmtime(86400 * 365), ' ', POSIX::strftime('%F %T', gmtime 1e9), ' ', POSIX::mktime(0, 0, 0, 1, 0, 70), "\n"; print POSIX::floor(-1.5), ' ', POSIX::fmod(7, 3), ' ', POSIX::strtol('ff', 16), "\n"; print +(getpwuid 0)[0], ' ', (getgrnam 'daemon')[2], ' ', $> == $<, ' ', (split ' ', $()[0], ' ', (POSIX::uname)[0], "\n"; print getppid() >= 0, ' ', $$ > 0, ' ', getpgrp() > 0, ' ', POSIX::sysconf(POSIX::_SC_PAGESIZE()), ' ', (POSIX::ttyname(0) // 'none'), "\n"; print getpriority(0, 0), "\n"; local $0 = 'renamed'; my %h = map { $_ => $_ ** 2 } 1 .. 100000; print sum(values %h), ' ', scalar(keys %h), "\n"; print "$ENV{LC_ALL} $0\n"; POSIX::_exit(3) if 0; my $pid = fork // print "no fork\n" if 0; exit 7;
PERL
DIR=$DIR $RUN perl all.pl || echo "status $?"
seq 1000 > n; $RUN perl -ne 'print if /00$/; END { print "$.\n" }' n
$RUN perl -i.bak -pe 's/^1/X/' n; head -1 n; head -1 n.bak
$RUN perl -MSDBM_File -MFcntl -e 'tie my %d, "SDBM_File", "dbm", O_RDWR | O_CREAT, 0640 or die $!; $d{$_} = "v$_" for 1 .. 2000; print scalar(keys %d), "\n"; untie %d; tie %d, "SDBM_File", "dbm", O_RDONLY, 0; print "$d{1234}\n"'
rm dbm.*
$RUN perl -e 'die "out\n"' 2>&1 || echo "status $?"
$RUN perl -e 'kill TERM => $$; sleep 1' || echo "status $?"
$RUN perl -Mthreads -e 'my @t = map { threads->create(sub { my $s = 0; $s += $_ for 1 .. 1000 * $_[0]; $s }, $_) } 1 .. 4; print join(" ", map { $_->join } @t), "\n"'
$RUN perl -e 'my $x = "a" x 50_000_000; print length $x, "\n"; $x = undef; my @a = (1 .. 1_000_000); print scalar @a, "\n"'
