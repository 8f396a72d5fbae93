# sort with threads and temporary files, large files, files with holes.
# needs: coreutils
# timeout: 120
awk 'BEGIN { srand(7); for (i = 0; i < 300000; i++) printf "%d %d line\n", rand() * 1e9, i }' > big
$RUN sort --parallel=4 -n big | md5sum
$RUN sort -S 500K --parallel=2 -T "$DIR" big | md5sum
$RUN sort -S 300K --batch-size=4 -T "$DIR" -k 2 -o sorted big; md5sum < sorted
$RUN sort -S 1M -c -k 2 sorted && echo sorted
ls
rm big sorted

# 100 MB, written, copied, read.
$RUN dd if=/dev/zero of=large bs=1M count=100 status=none
stat -c %s large
printf 'mark' | $RUN dd of=large bs=1 seek=77777777 conv=notrunc status=none
$RUN cp large copy
cmp large copy && $RUN cmp large copy && echo same
$RUN md5sum copy
$RUN tail -c +77777770 copy | tr -d '\0'; echo
$RUN truncate -s 77777780 copy
$RUN wc -c copy
$RUN tail -c 5 copy | od -c
rm large copy

# A file with holes: 10 GB that take no room.
$RUN truncate -s 10G holes
printf 'middle' | $RUN dd of=holes bs=1 seek=5G conv=notrunc status=none
printf 'end' >> holes
$RUN stat -c %s holes
test $(stat -c %b holes) -lt 1000 && echo sparse
$RUN tail -c 3 holes; echo
$RUN dd if=holes bs=6 count=1 skip=5G iflag=skip_bytes status=none; echo
$RUN cp --sparse=always --reflink=never holes copy
$RUN stat -c %s copy
test $(stat -c %b copy) -lt 1000 && echo sparse
$RUN dd if=copy bs=6 count=1 skip=5G iflag=skip_bytes status=none; echo
$RUN fallocate -p -o 5G -l 4096 copy 2>&1 || true
$RUN dd if=copy bs=6 count=1 skip=5G iflag=skip_bytes status=none | od -c
$RUN rm holes copy
