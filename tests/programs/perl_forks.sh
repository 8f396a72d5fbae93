# perl: fork, wait, pipes in both directions, signals across, what a child has and has not in common with its parent.
# needs: perl
# timeout: 60
cat > forks.pl <<'PERL'
use strict; use warnings; use POSIX qw(:sys_wait_h :signal_h _exit); use Time::HiRes qw(sleep time); use IO::Handle; use Socket; use Fcntl;
$| = 1;
sub said { print "@_\n" }
sub status { my $s = shift // $?; $s == -1 ? "none ($!)" : WIFEXITED($s) ? 'exit ' . WEXITSTATUS($s) : 'signal ' . WTERMSIG($s) . ($s & 128 ? ' core' : '') }
# fork and wait.
for my $code (0, 1, 255) { my $pid = fork // die; exit $code unless $pid; waitpid $pid, 0; said status }
{ my %of; for my $n (1 .. 8) { my $pid = fork // die; if (!$pid) { sleep 0.01 * (9 - $n); exit $n } $of{$pid} = $n } my $sum = 0; while ((my $pid = wait) > 0) { $sum += $of{$pid} == $? >> 8 ? 1 : 100 } said "waited for $sum", $! + 0 }
said waitpid(-1, WNOHANG), status;
{ my $pid = fork // die; if (!$pid) { sleep 5; exit } said waitpid($pid, WNOHANG); kill KILL => $pid; said waitpid($pid, 0) == $pid ? 'killed' : 'other', status }
# What is buffered at a fork is written by both; what is set by one is not seen by the other.
{ open my $f, '>', 'both'; print $f 'once '; my $pid = fork // die; print $f $pid ? 'parent' : 'child'; close $f; exit 0 unless $pid; wait; said length(do { local (@ARGV, $/) = 'both'; <> }) >= 11 ? 'both' : 'one'; unlink 'both' }
{ my $v = 1; my @a = (1 .. 1000); my $pid = fork // die; if (!$pid) { $v = 2; $_ *= 2 for @a; exit($a[500] == 1002 && $v == 2 ? 0 : 1) } wait; said status, "$v $a[500]" }
# Descriptors: an offset that both have, a pipe in either direction.
{ open my $f, '+>', 'offset'; syswrite $f, join '', 'a' .. 'z'; sysseek $f, 0, 0; my $pid = fork // die; if (!$pid) { sysread $f, my $x, 5; _exit 0 } wait; sysread $f, my $x, 5; said $x; close $f; unlink 'offset' }
{ pipe my $r, my $w; pipe my $r2, my $w2; my $pid = fork // die; if (!$pid) { close $w; close $r2; my $n = 0; $n += length while <$r>; syswrite $w2, "$n"; _exit 0 } close $r; close $w2; print $w "line $_\n" for 1 .. 20000; close $w; sysread $r2, my $n, 100; wait; said "through pipes $n", status }
# A parent's handle is closed by the last who has it.
{ pipe my $r, my $w; my @p = map { my $n = $_; my $pid = fork // die; if (!$pid) { close $r; sleep 0.02 * $n; syswrite $w, $n; _exit 0 } $pid } 1 .. 4; close $w; my $all = join '', sort map { split // } <$r>; said $all; waitpid $_, 0 for @p }
# open of pipes: '-|', '|-', lists, two at once, what close says.
{ my $pid = open(my $k, '-|') // die; if (!$pid) { said 'from the kid'; exit 3 } my @l = <$k>; close $k; print @l; said status }
{ my $pid = open(my $k, '|-') // die; if (!$pid) { my $n = 0; $n++ while <STDIN>; said "the kid read $n"; exit 4 } print $k "$_\n" for 1 .. 1000; close $k; said status }
{ open my $k, '-|', 'sh', '-c', 'echo a list; kill -TERM $$' or die; print <$k>; close $k; said status }
{ open my $k, '|-', 'sort', '-rn' or die; print $k "$_\n" for 1 .. 5; close $k; said status }
{ open my $k, '-|', '/no/such/program' or said "open: $!"; my $o = `/no/such/program 2>&1`; said status }
said "back: " . `echo ticks; exit 6` =~ s/\n//r, status; said join '|', map { chomp; $_ } `seq 3`; said system('exit 7') >> 8, system('true'), system { 'sh' } 'named', '-c', 'exit 8'; said status;
# Signals between them.
{ my ($got, $ready) = (0, 0); local $SIG{USR1} = sub { $ready++ }; my $parent = $$; my $pid = fork // die; if (!$pid) { local $SIG{USR2} = sub { $got++ }; kill USR1 => $parent; sleep 0.01 until $got; exit 40 + $got } sleep 0.01 until $ready; kill USR2 => $pid; waitpid $pid, 0; said status }
for my $sig (qw(HUP INT QUIT TERM PIPE ALRM USR1 KILL)) { my $pid = fork // die; if (!$pid) { POSIX::setrlimit(4, 0, 0) if 0; $SIG{$sig} = 'DEFAULT' unless $sig eq 'KILL'; sleep 5; _exit 0 } kill $sig => $pid; waitpid $pid, 0; said $sig, 'signal ' . WTERMSIG($?) }
{ my $n = 0; local $SIG{CHLD} = sub { while ((my $p = waitpid -1, WNOHANG) > 0) { $n++ } }; for (1 .. 20) { my $pid = fork // die; exit 0 unless $pid } my $end = time + 10; sleep 0.05 while $n < 20 && time < $end; said "SIGCHLD for $n" }
{ local $SIG{CHLD} = 'IGNORE'; my $pid = fork // die; exit 0 unless $pid; said waitpid($pid, 0), $! + 0 }
{ local $SIG{INT} = 'IGNORE'; my $pid = fork // die; if (!$pid) { exec 'sh', '-c', 'kill -INT $$; exit 9' } wait; said 'ignored over exec', status }
{ my $block = POSIX::SigSet->new(SIGUSR1); POSIX::sigprocmask(SIG_BLOCK, $block); my $pid = fork // die; if (!$pid) { local $SIG{USR1} = sub { _exit 11 }; kill USR1 => $$; my $p = POSIX::SigSet->new; POSIX::sigpending($p); _exit 1 unless $p->ismember(SIGUSR1); POSIX::sigprocmask(SIG_UNBLOCK, $block); sleep 1; _exit 2 } wait; said 'blocked over fork', status; POSIX::sigprocmask(SIG_UNBLOCK, $block) }
{ my $pid = fork // die; if (!$pid) { alarm 1; my $k = fork // die; if (!$k) { exit alarm(0) } wait; exit($? >> 8 || (alarm(0) > 0 ? 12 : 13)) } wait; said 'alarms are not inherited', status }
{ my $pid = fork // die; if (!$pid) { setpgrp; for (1 .. 2) { fork // die } sleep 5; _exit 0 } my $end = time + 5; sleep 0.02 while getpgrp($pid) != $pid && time < $end; sleep 0.1; kill TERM => -$pid; waitpid $pid, 0; said 'a group', status }
{ my $pid = fork // die; if (!$pid) { kill STOP => $$; exit 14 } said waitpid($pid, WUNTRACED) == $pid ? 'stopped' : 'other'; kill CONT => $pid; waitpid $pid, 0; said status }
said kill(0 => $$), kill(0 => 999_999), $! + 0;
# END blocks, exec.
{ my $pid = open(my $k, '-|') // die; if (!$pid) { eval 'END { print "end of $$\n" =~ s/\d+/N/r }'; exit 0 } print <$k>; close $k }
{ my $pid = open(my $k, '-|') // die; if (!$pid) { $ENV{GIVEN} = 'on'; exec { '/bin/sh' } '-sh', '-c', 'echo $0 $GIVEN $1', 'a', 'b' } print <$k>; close $k; said status }
{ my $pid = fork // die; if (!$pid) { no warnings; exec '/no/such' or _exit $! + 0 } wait; said 'exec', status }
{ local $^F = 100; pipe my $r, my $w; my $fd = fileno $w; system "echo passed >&$fd"; close $w; print <$r> }
{ pipe my $r, my $w; my $fd = fileno $w; fcntl $w, F_SETFD, FD_CLOEXEC; said system("(echo not passed >&$fd) 2> /dev/null") >> 8 ? 'closed' : 'open' }
# Sockets, locks and directories over fork.
{ socketpair my $a, my $b, AF_UNIX, SOCK_STREAM, PF_UNSPEC; my $pid = fork // die; if (!$pid) { close $a; while (sysread $b, my $x, 100) { syswrite $b, uc $x } _exit 0 } close $b; for (qw(one two)) { syswrite $a, $_; sysread $a, my $x, 100; said $x } close $a; wait; said status }
{ use Fcntl ':flock'; open my $f, '>', 'lock'; flock $f, LOCK_EX; my $pid = fork // die; if (!$pid) { open my $g, '>', 'lock'; exit(flock($g, LOCK_EX | LOCK_NB) ? 1 : flock($f, LOCK_EX | LOCK_NB) ? 15 : 2) } wait; said 'a lock', status; close $f; unlink 'lock' }
{ mkdir 'd'; my $pid = fork // die; if (!$pid) { chdir 'd'; umask 077; exit 0 } wait; said -d 'd' ? 'here' : 'moved', umask() == 022 ? 'same' : sprintf '%o', umask; rmdir 'd' }
# Many, one in another.
{ my $depth = 12; sub down { my $n = shift; return 0 unless $n; my $pid = open(my $k, '-|') // die; if (!$pid) { print 1 + down($n - 1), "\n"; exit 0 } my $x = <$k>; close $k; $x + 0 } said 'depth', down($depth) }
{ my $big = 'x' x 20_000_000; my @p = map { my $c = $_; my $pid = fork // die; if (!$pid) { substr($big, $_ * 4096, 1) = $c for 0 .. 4000; exit(($big =~ tr/x//) == 20_000_000 - 4001 ? 0 : 1) } $pid } qw(a b c d); my $ok = 0; for (@p) { waitpid $_, 0; $ok++ unless $? } said 'large', $ok, $big =~ tr/x// }
{ my $t = 0; for (1 .. 200) { my $pid = fork // die; _exit $_ & 127 unless $pid; waitpid $pid, 0; $t++ if $? >> 8 == ($_ & 127) } said "one after the other $t" }
{ my @t = times; said @t == 4 && $t[2] + $t[3] > 0 ? 'times of children' : "none: @t" }
PERL
$RUN perl forks.pl
