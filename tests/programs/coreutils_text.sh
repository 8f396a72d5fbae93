# coreutils on contents: reading, cutting, sorting, joining, printing.
# needs: coreutils
# timeout: 120
# The programs, not the built-ins of the same names.
r() { local p; p=$(type -P "$1" || echo "$1"); shift; $RUN "$p" "$@" 2>&1 || echo "status $?"; }
seq 1 100 > numbers
printf 'the quick\tbrown fox\njumps over\n\n\nthe lazy dog\r\nno newline' > words
printf 'b 2\na 1\nc 3\na 9\n' > left
printf 'a x\nb y\nd z\n' > right
head -c 100000 /dev/zero | tr '\0' 'ab' > long
r cat -A words; echo
r cat -n -s words; echo
r cat -b numbers words - < right
r cat none words > out || true
r tac numbers
r tac -s ' ' left
r head -n 3 numbers words
r head -c 10 words; echo
r head -n -95 numbers
r tail -n 3 numbers
r tail -c 7 numbers
r tail -n +98 numbers
r tail -c +280 numbers
tail -n 2 < numbers | $RUN tail -n 1
r wc numbers words
r wc -l -w -c -m -L words
$RUN wc -c < long
r sort -n -r numbers | sed -n '1,3p'
r sort -k 2 left
r sort -u -k 1,1 left
r sort -c left
r sort -m left right
r sort -t ' ' -k 2n -s -o sorted left
r sort -V right left
r sort -R --random-source=numbers numbers | wc -l
r sort -z left | tr '\0' '!'
r sort -h numbers | tail -1
r uniq -c left
printf 'a\na\nB\nb\nc\n' | r uniq -i -d
printf 'a\na\nB\nb\nc\n' | r uniq -u
printf 'x a\ny a\nz b\n' | r uniq -f 1 --group=both
r cut -d ' ' -f 2 left
r cut -c 2-4,7- words
r cut -b 1-3 --complement words
r cut -f 1 --output-delimiter=+ words
r paste left right
r paste -s -d, numbers
r paste -d '+-' left right left
sort left > l2; r join l2 right
r join -a 1 -e NONE -o 0,1.2,2.2 l2 right
r join -v 2 l2 right
r comm l2 right
r comm -12 l2 right
r tr a-z A-Z < words; echo
r tr -d '\n\r' < words; echo
r tr -s 'o ' < words; echo
r tr -c 'a-z\n' '_' < words; echo
r fold -w 10 words; echo
r fold -s -w 7 words; echo
r fmt -w 20 words; echo
r nl words; echo
r nl -ba -w 3 -s ': ' -v 10 words; echo
r od -c words
r od -A x -t x1z -v words
r od -t d2 -N 16 -j 4 numbers
r od -t f8 -N 16 numbers
r base64 words
r base64 -w 0 long | $RUN base64 -d | cmp - long && echo same
r base32 words
r basenc --base16 left
r md5sum numbers words
r sha1sum numbers
r sha224sum numbers
r sha256sum numbers words > sums
r sha256sum -c sums
echo changed >> words
r sha256sum -c --quiet sums
r sha384sum --tag numbers
r sha512sum -b numbers
r b2sum -l 128 numbers
r cksum numbers
r cksum -a md5 numbers
r sum numbers
r sum -s numbers words
r split -l 30 numbers part.
r split -n 3 -d numbers chunk
r split -b 30K -a 3 --additional-suffix=.bin long piece
r split -n l/2 numbers lines.
r csplit numbers 10 '/50/+1' '{0}' '%70%'
r csplit -s -f cs -b %03d words '/the/' '{*}'
r tee one two < left
r tee -a one < right
$RUN tee /dev/stderr < left 2>&1
r seq 5
r seq -w 8 11
r seq -s : 1 0.5 3
r seq -f %03g 10 -3 1
r shuf --random-source=numbers numbers | sed -n '1,5p'
r shuf -i 1-50 -n 3 --random-source=long
r shuf -e a b c --random-source=long
r factor 1 97 1001 18446744073709551557
r numfmt --to=iec 1048576 1500
r numfmt --from=si 3K 1M
r numfmt --field=2 --to=si --format=%10f < left
r expr 6 '*' 7
r expr length hello
r expr substr hello 2 3
r expr hello : 'h\(.*\)o'
r expr 1 '>' 2
r expr 5 / 0
r ptx -G left | sed -n '1,2p'
r tsort <<< 'a b
b c
d b'
r pr -T -2 -w 40 numbers | sed -n '1,5p'
r expand -t 4 words; echo
r unexpand -a -t 4 words; echo
r dd if=numbers of=dd1 bs=10 count=3 status=none
r dd if=numbers of=dd1 bs=10 skip=2 seek=5 count=2 conv=notrunc status=none
r dd if=words of=dd2 conv=ucase,swab status=none
r dd if=numbers of=dd3 bs=7 conv=sync,noerror status=none
r dd if=long of=dd4 bs=4k oflag=append conv=notrunc status=none
r dd if=/dev/zero of=dd5 bs=1 count=0 seek=100 status=none
r dd if=long of=dd6 bs=64k iflag=fullblock,skip_bytes skip=5 conv=fsync,sparse status=none
$RUN dd if=long of=/dev/null bs=1k 2>&1 | sed 's/ copied.*//'
$RUN dd if=words bs=3 count=2 2> /dev/null; echo
$RUN dd if=numbers of=dd7 bs=16 cbs=8 conv=block 2>&1 | sed -n '1,2p'
r truncate -s 100 dd7
