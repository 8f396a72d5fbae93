# find, grep, sed, awk, diff, patch, file, jq, bc, xargs-less work on trees and texts.
# needs: findutils grep sed mawk gawk diffutils patch file jq bc bsdextrautils
# timeout: 120
r() { $RUN "$@" 2>&1 || echo "status $?"; }
umask 022
mkdir -p tree/a/b tree/c
for n in $(seq 60); do seq $n > tree/a/f$n; done
touch -d @1000000000 tree/a/f1 tree/a/f2; chmod 600 tree/a/f3; ln -s f1 tree/a/link; ln -s none tree/c/broken; ln tree/a/f4 tree/a/b/hard; mkfifo tree/c/pipe; : > tree/c/empty
$RUN find tree -type f | sort | md5sum
$RUN find tree -name 'f[12]*' ! -newer tree/a/f1 -printf '%p %s %m %u %l %T@ %d\n' | sort
$RUN find tree -type l -o -type p -o -empty | sort
$RUN find tree -xtype l; $RUN find -L tree -type l; $RUN find tree -samefile tree/a/f4 | sort; $RUN find tree -links +1 -type f | sort; $RUN find tree -perm 600 -o -perm /111 -type d | sort
$RUN find tree -size -10c -size +5c | sort; $RUN find tree -mindepth 2 -maxdepth 2 -regex '.*/f5.*' | sort; $RUN find tree -path '*b*' -prune -o -iname 'F6*' -print | sort; $RUN find tree -mmin +60 | sort; $RUN find tree -user 0 -name f9 -ls | awk '{ print $3, $7, $11 }'
r find nothing; $RUN find tree -name f8 -delete; test ! -e tree/a/f8 && echo deleted; $RUN find tree -depth -name 'f7*' -print0 | tr '\0' '\n' | sort; $RUN find tree/a/f5 -newermt 2001-01-01 -readable -writable ! -executable; $RUN find tree -quit; $RUN find tree/a -name f10 -fprint found; cat found
r grep -rn '^59$' tree --include='f*' | sort; r grep -c 7 tree/a/f50; r grep -l 55 -r tree | sort; r grep -L 1 tree/a/f5 tree/c/empty; r grep -E '^(1|2)0$' tree/a/f25; r grep -P '^\d{2}(?<!5)$' tree/a/f16; r grep -o '[0-9]$' tree/a/f3; r grep -v -m 2 1 tree/a/f9; r grep -A1 -B1 -n 5 tree/a/f9; r grep -w -i -F -x 7 tree/a/f9; r grep nothing tree/a/f1; r grep x missing; r grep -q 1 tree/a/f1; printf 'a\0b\n' | r grep -a b; printf 'bin\0ary\n' > bin; r grep ary bin; r grep -z -o ary bin | tr '\0' '!'; r egrep 'a|b' bin; r grep -f tree/a/f2 tree/a/f12 --color=always; r grep -R 3 tree/c -s -D skip
seq 20 > s; r sed -n '5,8p;$=' s; r sed 's/1/X/g;3d;/7/,/9/{s/^/>/}' s; r sed -e '2i\
inserted' -e '4a appended' -e '5c changed' -e 6q s; r sed -i.bak 's/^2$/two/w written' s; cat written; r sed -E 's/([0-9])([0-9])/\2\1/' s.bak; r sed -n '/1/{N;P;D}' s; r sed '1!G;h;$!d' s; r sed -s -n '$p' s s.bak; r sed 'y/123/abc/;s/a/\U&x/' s; r sed -n 'l' s | sed -n 1p; r sed -z 's/\n/,/g' s; echo; r sed 'bad' s; r sed = s | sed -n 1,4p; r sed 5r\ written s | sed -n 4,7p; r sed -n '0~5p' s; r sed --follow-symlinks -i 's/two/2/' s
for awk in mawk gawk; do
r $awk '{ s += $1; a[$1 % 3]++ } END { print s, NR, a[0], a[1], a[2]; printf "%.3f %5d|%-5s|%c%x\n", 22/7, 42, "ab", 65, 255 }' s
r $awk -F: -v OFS=- 'NR <= 3 { $2 = "x"; print; print NF, $1, length($0), substr($1, 2, 2), index($1, "o"), toupper($1) }' /etc/passwd
r $awk 'BEGIN { n = split("a,b,c", p, ","); print n, p[2]; x = "hello world"; gsub(/o/, "0", x); print x, match(x, /w.*/), RSTART, RLENGTH; print sprintf("%s", sin(0)), int(3.9), log(1), exp(0); while ((getline line < "s") > 0) c++; print c; close("s"); print "to file" > "awk-out"; print "more" >> "awk-out"; close("awk-out"); getline y < "awk-out"; print y; print ENVIRON["TZ"], ARGC; printf "err\n" > "/dev/stderr"; exit 3 }'
r $awk 'function f(n) { return n < 2 ? n : f(n - 1) + f(n - 2) } BEGIN { print f(20); for (i = 0; i < 200000; i++) t[i] = i * i; print length(t), t[199999]; srand(1); r = rand(); print r < 1 }'
r $awk '/5/,/8/ { print FILENAME, FNR, $0 } { next } END { print NR }' s s.bak
r $awk 'BEGIN { RS = ""; FS = "\n" } { print NR ": " $1 }' <<< $'a\nb\n\nc\nd'
r $awk '{ print > ("out-" NR % 3) }' s; r $awk 'BEGIN {' ; done
seq 100 > old; sed -e '10d;20s/^/changed /;50a\new line' old > new; r diff old new; r diff -u --label old --label new old new; r diff -c old new | sed 1,2d; r diff -y -W 30 old new | sed -n 8,12p; r diff -q old new; r diff -rq tree/a tree/c | sort; r diff old old; r diff --brief old none; r diff -e old new; r diff -w -B -i old new | wc -l; r cmp old new; r cmp -l old new | wc -l; r cmp -n 10 old new; r sdiff -s old new; r diff --suppress-common-lines -D X old new | grep -c '#'
$RUN diff -u old new > p.diff || true; cp old target; r patch target p.diff; cmp target new; r patch -R target p.diff; r patch --dry-run target p.diff; r patch -b -p0 -o patched target p.diff; cmp patched new; echo garbage > not.diff; r patch -r - target not.diff; r patch -N -r - target < p.diff; r patch -N -r - target < p.diff; rm -f p.diff
r file old bin tree/a/link tree/c/pipe tree /bin/true /dev/null none; r file -b --mime-type old bin; r file -i s; gzip -cn old > z.gz; r file -z z.gz; r file - < old
echo '{"a": [1, 2, {"b": "x"}], "n": 1.5, "s": "\u00e9"}' > j; r jq . j; r jq -c '.a[2].b, (.a | length), .n * 2, (.s | ascii_downcase), keys' j; r jq -r '.s' j; r jq '.a[]' j; r jq --arg v 3 '. + {v: $v}' j; r jq -n '[range(5)] | map(. * .) | add'; r jq . bin; r jq -e .none j; r jq -s length j j; r jq --slurpfile f j -n '$f[0].n'; r jq -S --tab . j
echo 'scale=20; 4*a(1); 2^200; define f(n) { if (n < 2) return 1; return n * f(n-1); } f(30)' | r bc -lq
r hexdump -C bin; r column -t /etc/debian_version; r rev s | sed -n 12p; r look 2 s; r hexdump -e '4/1 "%02x " "\n"' bin; r colrm 2 < s | sed -n 12p
rm tree/c/pipe
